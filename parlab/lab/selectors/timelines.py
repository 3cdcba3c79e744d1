"""Timelines of pipelines: what a simulation says that every rank does when."""

from __future__ import annotations

from parlab.charts.format import quantity
from parlab.charts.timeline import Bar, Timeline
from parlab.planner.schedule import Outcome

_PASSES = {"F": "forward", "B": "backward", "I": "backward", "W": "weight"}


def simulated_timeline(outcome: Outcome, *, step_s: float = 0.0) -> Timeline:
    """Shape a simulated schedule for drawing; `step_s` is what every rank does at the end of the iteration."""
    simulation = outcome.simulation
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
    if step_s:
        begin = simulation.iteration_s - step_s
        bars += [Bar(rank, "optimizer", None, begin, simulation.iteration_s) for rank in range(len(simulation.passes))]
    return Timeline(outcome.plan.title, simulation.iteration_s, bars, simulation.bubble_fractions, simulation.held)
