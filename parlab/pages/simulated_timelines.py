"""Timelines of pipelines as the simulation says them."""

from __future__ import annotations

from parlab.charts.format import quantity
from parlab.charts.timeline import Bar, Timeline
from parlab.lab.models import Run
from parlab.lab.selectors.pipelines import pipeline_run, times_of
from parlab.planner.schedule import Outcome, Plan, outcome

_PASSES = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}


def simulated_timeline(found: Outcome, *, title: str = "") -> Timeline:
    """Shape a simulated schedule for drawing."""
    simulation = found.simulation
    bars = [
        Bar(rank, _PASSES[one.kind], one.micro_batch, one.begin_s, one.end_s, one.chunk)
        for rank, passes in enumerate(simulation.passes)
        for one in passes
        if one.end_s > one.begin_s
    ]
    bars += [
        Bar(
            rank,
            one.kind,
            one.micro_batch,
            one.begin_s,
            one.left_s,
            note=f" to rank {one.target}, which has it at {quantity(one.arrival_s, 's', 5)}",
        )
        for rank, sent in enumerate(simulation.transfers)
        for one in sent
        if one.left_s > one.begin_s
    ]
    if simulation.step_s:
        begin = simulation.iteration_s - simulation.step_s
        bars += [Bar(rank, "optimizer", None, begin, simulation.iteration_s) for rank in range(len(simulation.passes))]
    title = title or found.plan.title
    return Timeline(title, simulation.iteration_s, bars, simulation.bubble_fractions, simulation.held)


def simulated_run(run: Run, plan: Plan | None = None) -> Timeline | None:
    """Simulate a run on its own network, with its own times; another plan may stand for its own.

    None where its times are not known; raises ValueError for a plan that its sizes do not have.
    """
    one = pipeline_run(run)
    times = times_of(one) if one else None
    if one is None or times is None:
        return None
    found = outcome(plan or one.plan, one.pipeline(times.stages, step_s=times.step_s), one.wire)
    title = f"{found.plan.title}, simulated with {times.basis}"
    return simulated_timeline(found, title=title)
