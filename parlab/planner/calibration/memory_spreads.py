"""How far predictions of the memory may be off: standard deviations of log(measured/predicted) by kind of job.

Fitted to memory figures and to jobs that ran or ran out of memory, each publication predicted with constants fitted to
the others (`make bench-planner` prints how reliable the probabilities are; docs/understand/planner.md).
"""

from __future__ import annotations

from parlab.planner.job.workload import Job

NAMED = 0.06
UNNAMED = 0.10
SHARDED = 0.12
EXPERTS = 0.12
LOW_PRECISION = 0.10
PROCESSOR = 0.25


def usual_memory_spread(job: Job, *, is_cpu: bool) -> float:
    """Return the deviation of log(measured/predicted) without a calibration; the widest kind of the job counts."""
    if is_cpu:
        return PROCESSOR
    widths = [NAMED if job.family else UNNAMED]
    if job.effective_zero == 3:
        widths.append(SHARDED)
    if job.model.num_experts > 1:
        widths.append(EXPERTS)
    if job.is_low_precision:
        widths.append(LOW_PRECISION)
    return max(widths)
