"""The bubble of a pipeline whose first stage is the largest: simulated pass by pass, since the closed form fails there.

The closed form adds one micro batch on all other stages to the work of the slowest one. It agrees with the simulation
within 4 % wherever the first stage is not the largest (tests/planner/test_simulated.py). A first stage that is larger
than the others computes its warm-up passes while the pipeline fills, and never waits for a gradient later.
"""

from __future__ import annotations

import math
from dataclasses import replace

from parlab.planner.job.workload import Job
from parlab.planner.schedule.choice import Plan, outcome
from parlab.planner.schedule.pipeline import MAX_RANKS, Link, Pipeline, StageTimes

from .memory import stage_layers
from .timing import Clock, Timing

_SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b")
_MOST_PASSES = 4096
"""Most passes that a prediction simulates, in 20 ms; with more micro batches the bubble is a small part."""
NOTE = "the first stage is the largest: the pipeline was simulated pass by pass"


def has_largest_first_stage(job: Job) -> bool:
    """Return whether the closed form fails and the simulation knows the schedule."""
    stages = job.pipeline_parallel
    if stages == 1 or stages > MAX_RANKS or job.schedule not in _SCHEDULES:
        return False
    if job.chunks > 1 and job.num_micro_batches % stages:
        return False
    passes = 2 * stages * job.num_micro_batches * job.chunks
    others = max(stage_layers(job, stage) for stage in range(1, stages))
    return passes <= _MOST_PASSES and stage_layers(job, 0) > others


def with_simulated_bubble(clock: Clock, parts: Timing) -> Timing:
    """Return a timing with the bubble of the simulated pipeline."""
    busy_s = parts.compute_s + parts.tensor_s + parts.context_s + parts.expert_s + parts.pipeline_s
    return replace(parts, bubble_s=max(0.0, simulated_s(clock) - busy_s))


def simulated_s(clock: Clock) -> float:
    """Return the time of all passes of an iteration and of the messages between stages."""
    job = clock.job
    transfer_s, latency_s = clock.hop_s()
    link = Link(latency_s, 1 / transfer_s if transfer_s else math.inf)
    stages = tuple(_stage_times(clock, stage) for stage in range(job.pipeline_parallel))
    pipeline = Pipeline(stages, job.num_micro_batches, (link,) * len(stages), 1 / 8, 1 / 8)
    plan = Plan(job.schedule, job.warmup_slope if job.schedule == "1f1b" else 1, job.chunks)
    return outcome(plan, pipeline).simulation.iteration_s


def _stage_times(clock: Clock, stage: int) -> StageTimes:
    """Return the times of a stage; messages of a layer are divided between its passes by their length."""
    layer, layers = clock.layer, stage_layers(clock.job, stage)
    forward, backward = layer.passes_s
    messages = layer.tensor_s + layer.context_s + layer.expert_s
    share = forward / (forward + backward)
    head_s = layer.head_s if stage == clock.job.pipeline_parallel - 1 else 0.0
    return StageTimes(
        layers * (forward + share * messages) + head_s / 3,
        layers * (backward + (1 - share) * messages) + 2 * head_s / 3,
    )
