"""How far uncalibrated predictions of the time may be off: widths of the intervals that hold 80 % of predictions.

Each width is the 80 % quantile of |log(predicted/measured)| with constants fitted to the other publications, where each
publication of the kind has the same weight however many rows it has: the next one is a code base of its own
(`make bench-planner` prints the share of rows inside; docs/understand/planner.md).
"""

from __future__ import annotations

from parlab.planner.job.cluster import Cluster
from parlab.planner.job.code_bases import is_open
from parlab.planner.job.practice import is_recent_device
from parlab.planner.job.workload import Job

USUAL = 0.14
RECENT = 0.135
SHAPED = 0.17
SHORT = 0.43
EXPERTS = 0.27
UNNAMED = 0.22
CONTEXT = 0.44
SHARDED = 0.125
SHARDED_STAGES = 0.53
UNHIDDEN = 0.85
OLD_NETWORK = 0.61
SHAPED_SHARDED = 0.53
PROCESSOR = 0.7
_SHORT_S = 0.5


def usual_spread(job: Job, cluster: Cluster, seconds: float) -> float:
    """Return the relative error that 80 % of uncalibrated predictions of such jobs stay within.

    `seconds` is the predicted time of an iteration. If several kinds apply, the widest counts.
    """
    if cluster.device.is_cpu:
        return PROCESSOR
    is_sharded = job.effective_zero == 3
    is_several_nodes = job.world_size > cluster.gpus_per_node
    if cluster.between.is_measured and cluster.gpus_per_node == 1:
        return SHAPED_SHARDED if is_sharded else SHAPED
    widths = [RECENT if job.has_flash_attention else USUAL]
    if is_open(job) and not is_recent_device(cluster.device.name):
        widths.append(UNNAMED)
    if job.model.num_experts > 1:
        widths.append(EXPERTS)
    if job.context_parallel > 1:
        widths.append(CONTEXT)
    if is_sharded and is_several_nodes:
        widths.append(SHARDED if job.overlaps_gradients else UNHIDDEN)
        if job.pipeline_parallel > 1:
            widths.append(SHARDED_STAGES)
    if cluster.device.name.startswith("V100") and is_several_nodes:
        widths.append(OLD_NETWORK)
    if seconds < _SHORT_S:
        widths.append(SHORT)
    return max(widths)
