"""Measured timelines of runs: the operations that their engines recorded for single steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from parlab.charts.runs.timeline import Bar, Timeline
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.analysis.pipelines import PipelineRun, pipeline_of
from parlab.planner.schedule import code_of
from parlab.series import operations
from parlab.series.operations import Operation
from parlab.whole_numbers import whole_number
from runners.schedules import micro_batches_in_flight, schedule
from runners.wire.protocol import RunState

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
_SIMULATED = ("gpipe", "1f1b", "zb-h1")
"""Schedules that every run of a pipeline can be simulated with."""
_BUSY = ("forward", "backward", "weight", "optimizer")


def steps_of(attempt: Attempt | None) -> list[int]:
    return operations.steps(attempt.pk) if attempt else []


def measured_timeline(run: Run, attempt: Attempt, step: int | None = None) -> Timeline | None:
    """Return the timeline of one step of a run, by default the last of its first ten steps after the warm-up.

    None if the engine did not record when its operations began and ended, or if that step was not recorded.
    """
    steps = steps_of(attempt)
    if not steps or (step is not None and step not in steps):
        return None
    step = _typical(steps, run) if step is None else step
    spans = operations.read(attempt.pk, step)
    lanes = [[_bar(rank, span) for span in spans.get(rank, [])] for rank in range(max(spans, default=-1) + 1)]
    iteration_s = max((bar.end_s for bars in lanes for bar in bars), default=0.0)
    pipeline_run = pipeline_of(run)
    has_stage_lanes = pipeline_run is not None and pipeline_run.shape.stages == len(lanes)
    return Timeline(
        _measured_title(run, step, pipeline_run),
        iteration_s,
        [bar for bars in lanes for bar in bars if bar.end_s > bar.begin_s],
        [_bubble_fraction(bars, iteration_s) for bars in lanes],
        _held(pipeline_run) if pipeline_run and has_stage_lanes else (),
    )


def _measured_title(run: Run, step: int, pipeline_run: PipelineRun | None) -> str:
    kind = "emulated" if pipeline_run and pipeline_run.is_emulated else "measured"
    plan = f"{pipeline_run.plan.title}, " if pipeline_run else ""
    return f"{plan}{kind}, step {step} of run {run.number} of {run.experiment.name}"


def _bubble_fraction(bars: Sequence[Bar], iteration_s: float) -> float:
    busy_s = sum(bar.end_s - bar.begin_s for bar in bars if bar.kind in _BUSY)
    return 1 - busy_s / iteration_s if iteration_s else 0.0


def _typical(steps: list[int], run: Run) -> int:
    """Choose an early step after the warm-up, so that the page of an active run keeps showing the same step."""
    warmup = int((run.resolved.get("train") or {}).get("warmup_steps") or 0)
    settled = [step for step in steps[:10] if step > warmup]
    return settled[-1] if settled else steps[-1]


def _bar(rank: int, span: Operation) -> Bar:
    micro_batch = None if span.micro_batch < 0 else span.micro_batch
    return Bar(rank, _MEASURED[span.name], micro_batch, span.begin_s, span.end_s)


def _held(pipeline_run: PipelineRun) -> list[int]:
    """Return the micro batches that each rank holds at most, according to the schedule."""
    plan = pipeline_run.plan
    try:
        lists = schedule(
            plan.name,
            pipeline_run.shape.stages,
            pipeline_run.micro_batches,
            warmup_slope=plan.warmup_slope,
            virtual_stages=plan.virtual_stages,
        )
    except ValueError:
        return []
    return [micro_batches_in_flight(operations) for operations in lists]


def timeline_choices(run: Run) -> list[tuple[str, str]]:
    """Return the timelines of a run that a page can draw: address and title."""
    pipeline_run = pipeline_of(run)
    name, shown = f"{run.experiment.slug}/{run.number}", f"{run.experiment.name} #{run.number}"
    plan = f", {pipeline_run.plan.title}" if pipeline_run else ""
    attempt = run.attempts.filter(number=run.attempt_number).first()
    choices = [(name, f"{shown}{plan}, measured")] if steps_of(attempt) else []
    if pipeline_run is not None and (pipeline_run.step_time_s is not None or pipeline_run.is_emulated):
        choices.append((f"simulated:{name}", f"{shown}{plan}, simulated"))
        others = [code for code in _SIMULATED if code != code_of(pipeline_run.plan)]
        choices += [(f"simulated:{name}:{code}", f"{shown} as {code}, simulated") for code in others]
    return choices


class RunTimeline(NamedTuple):
    steps: list[int]
    step: int | None
    """The step that the page draws."""
    lanes: int
    address: str
    """Query string of the comparison of timelines with the measured run above the simulated one."""
    can_simulate: bool
    was_refused_links: bool
    """Whether the node could not emulate the links; the page then offers the simulation instead."""


def run_timeline(run: Run, attempt: Attempt | None, step: str = "") -> RunTimeline:
    """Return the steps of a run that can be drawn, and whether the run can be simulated."""
    steps, pipeline_run = steps_of(attempt), pipeline_of(run)
    number = whole_number(step)
    requested = number if number in steps else None
    drawn = requested if requested is not None or not steps else _typical(steps, run)
    name = f"{run.experiment.slug}/{run.number}"
    can_simulate = pipeline_run is not None and (pipeline_run.step_time_s is not None or pipeline_run.is_emulated)
    sides = {"a": name if requested is None else f"{name}@{requested}"} if steps else {}
    sides |= {"b": f"simulated:{name}"} if can_simulate else {}
    was_refused_links = run.state == RunState.FAILED and "network." in run.reason
    stages = int((run.resolved.get("parallel") or {}).get("pipeline_parallel_size") or 1)
    return RunTimeline(steps, drawn, stages * len(sides), urlencode(sides), can_simulate, was_refused_links)
