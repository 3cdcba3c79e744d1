"""Timelines of simulated pipelines."""

from __future__ import annotations

from parlab.charts.format import quantity
from parlab.charts.runs.timeline import Bar, Timeline
from parlab.lab.models import Run
from parlab.lab.selectors.analysis.pipelines import pipeline_of, times_of
from parlab.planner.schedule import Outcome, Plan, outcome

_PASSES = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}


def simulated_timeline(schedule: Outcome, *, title: str = "") -> Timeline:
    simulation = schedule.simulation
    bars = [
        Bar(rank, _PASSES[item.kind], item.micro_batch, item.begin_s, item.end_s, item.chunk)
        for rank, passes in enumerate(simulation.passes)
        for item in passes
        if item.end_s > item.begin_s
    ]
    bars += [
        Bar(
            rank,
            transfer.kind,
            transfer.micro_batch,
            transfer.begin_s,
            transfer.left_s,
            note=f" to rank {transfer.target}, arrives at {quantity(transfer.arrival_s, 's', 5)}",
        )
        for rank, transfers in enumerate(simulation.transfers)
        for transfer in transfers
        if transfer.left_s > transfer.begin_s
    ]
    if simulation.step_s:
        begin = simulation.iteration_s - simulation.step_s
        bars += [Bar(rank, "optimizer", None, begin, simulation.iteration_s) for rank in range(len(simulation.passes))]
    title = title or schedule.plan.title
    return Timeline(title, simulation.iteration_s, bars, simulation.bubble_fractions, simulation.held)


def simulated_run(run: Run, plan: Plan | None = None) -> Timeline | None:
    """Simulate a run on its own network with its own times, optionally with another plan.

    None if its times are not available; raises ValueError for a plan that does not fit its sizes.
    """
    pipeline_run = pipeline_of(run)
    times = times_of(pipeline_run) if pipeline_run else None
    if pipeline_run is None or times is None:
        return None
    pipeline = pipeline_run.pipeline(times.stages, step_s=times.step_s)
    schedule = outcome(plan or pipeline_run.plan, pipeline, pipeline_run.wire)
    return simulated_timeline(schedule, title=f"{schedule.plan.title}, simulated with {times.basis}")
