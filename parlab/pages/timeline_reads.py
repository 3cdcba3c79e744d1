"""Timelines of runs as they were measured: what their engines printed of single steps."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlencode

from parlab.charts.timeline import Bar, Timeline
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors import PipelineRun, pipeline_run
from parlab.series import operations
from parlab.series.operations import Operation
from runners.protocol import RunState
from runners.schedules import micro_batches_in_flight, schedule

_MEASURED = {
    "forward-compute": "forward",
    "backward-compute": "backward",
    "backward-weight": "weight",
    "optimizer": "optimizer",
    "forward-recv": "wait-activations",
    "backward-recv": "wait-gradients",
    "forward-send": "send",
    "backward-send": "send",
}
_BUSY = ("forward", "backward", "weight", "optimizer")


def steps_of(attempt: Attempt | None) -> list[int]:
    """List the steps of an attempt that can be drawn."""
    return operations.steps(attempt.pk) if attempt else []


def measured_timeline(run: Run, attempt: Attempt, step: int | None = None) -> Timeline | None:
    """Read one step of a run for drawing; without a number the last of the first steps that is no warm-up.

    None where the training did not say when its operations began and ended.
    """
    steps = steps_of(attempt)
    if not steps or (step is not None and step not in steps):
        return None
    chosen = _typical(steps, run) if step is None else step
    found = operations.read(attempt.pk, chosen)
    iteration_s = max((one.end_s for spans in found.values() for one in spans), default=0.0)
    ranks = range(max(found, default=-1) + 1)
    bars = {rank: [_bar(rank, one) for one in found.get(rank, [])] for rank in ranks}
    busy = [sum(bar.end_s - bar.begin_s for bar in bars[rank] if bar.kind in _BUSY) for rank in ranks]
    one = pipeline_run(run)
    kind = "emulated" if one and one.is_emulated else "measured"
    plan = f"{one.plan.title}, " if one else ""
    return Timeline(
        f"{plan}{kind}, step {chosen} of run {run.number} of {run.experiment.name}",
        iteration_s,
        [bar for rank in ranks for bar in bars[rank] if bar.end_s > bar.begin_s],
        [1 - seconds / iteration_s if iteration_s else 0.0 for seconds in busy],
        _held(one) if one and one.shape.stages == len(ranks) else (),
    )


def _typical(steps: list[int], run: Run) -> int:
    """Choose a step that is no warm-up, and early: a page of a run that goes on shows the same one."""
    warmup = int((run.resolved.get("train") or {}).get("warmup_steps") or 0)
    settled = [step for step in steps[:10] if step > warmup]
    return settled[-1] if settled else steps[-1]


def _bar(rank: int, one: Operation) -> Bar:
    return Bar(rank, _MEASURED[one.name], None if one.micro_batch < 0 else one.micro_batch, one.begin_s, one.end_s)


def _held(one: PipelineRun) -> list[int]:
    plan = one.plan
    try:
        lists = schedule(
            plan.name,
            one.shape.stages,
            one.micro_batches,
            warmup_slope=plan.warmup_slope,
            virtual_stages=plan.virtual_stages,
        )
    except ValueError:
        return []
    return [micro_batches_in_flight(operations) for operations in lists]


class RunTimeline(NamedTuple):
    """What the page of a run says of its timeline."""

    steps: list[int]
    step: int | None
    """The one that is shown."""
    lanes: int
    address: str
    """Query of /timelines/ that shows it: the run as measured above the same run simulated."""
    can_simulate: bool
    was_refused_links: bool
    """The node could not shape links for it: the simulation is offered instead."""


def run_timeline(run: Run, attempt: Attempt | None, step: str = "") -> RunTimeline:
    """Say which steps of a run can be drawn, and whether it can be simulated."""
    steps, one = steps_of(attempt), pipeline_run(run)
    wanted = int(step) if step.isdecimal() and int(step) in steps else None
    shown = wanted if wanted is not None or not steps else _typical(steps, run)
    name = f"{run.experiment.slug}/{run.number}"
    can_simulate = one is not None and (one.step_time_s is not None or one.is_emulated)
    sides = {"a": name if wanted is None else f"{name}@{wanted}"} if steps else {}
    sides |= {"b": f"simulated:{name}"} if can_simulate else {}
    was_refused_links = run.state == RunState.FAILED and "network." in run.reason
    stages = int((run.resolved.get("parallel") or {}).get("pipeline_parallel_size") or 1)
    return RunTimeline(steps, shown, stages * len(sides), urlencode(sides), can_simulate, was_refused_links)
