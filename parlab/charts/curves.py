"""Curves of one run: step time over its steps, memory over its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import plotly.graph_objects as go

from . import theme
from .format import Unit, quantity, unit_for
from .theme import Drawing, Table


class Curve(NamedTuple):
    """One series of one rank: equal-length columns; `times` in Unix seconds."""

    steps: Sequence[int]
    times: Sequence[float]
    values: Sequence[float]


def step_time(curves: Mapping[int, Curve], *, warmup_steps: int, iterations: int) -> Drawing:
    """Draw step time (y) of each rank against the step (x); steps of the warm-up lie on a shaded ground."""
    present = {rank: curve for rank, curve in sorted(curves.items()) if len(curve.steps)}
    if not present:
        return theme.nothing("No step times: the training has finished no step.")
    unit = unit_for((value for curve in present.values() for value in curve.values), "s")
    last = max(int(step) for curve in present.values() for step in curve.steps)
    # A team's own command may train for longer than anybody told parlab.
    end = max(iterations, last, 1)
    drawing = go.Figure(
        layout=theme.layout(
            title="Step time",
            subtitle="each step as it was measured",
            x="Step",
            y=f"Step time ({unit.name})",
            xaxis={"range": [0.5, end + 0.5], "tickformat": "d", **({"dtick": 1} if end <= 12 else {})},
            yaxis={"rangemode": "tozero"},
        )
    )
    if warmup_steps:
        drawing.add_vrect(
            x0=0.5, x1=warmup_steps + 0.5, fillcolor=theme.GREY, opacity=0.15, line_width=0, layer="below"
        )
    for rank, curve in _drawn(present).items():
        drawing.add_trace(_trace(rank, curve, list(curve.steps), unit, "s"))
    drawing.update_layout(showlegend=len(present) > 1)
    words = f"{last} of {iterations} steps." if iterations >= last else f"{last} steps."
    if warmup_steps:
        words += f" The first {warmup_steps} (shaded) are warm-up: measured, but left out of the statistics."
    return Drawing(drawing, words, _table(present, "step_time_s"))


def memory(curves: Mapping[int, Curve], *, start: float | None = None) -> Drawing:
    """Draw memory (y) of each rank, and of the whole run as rank -1, against seconds since start or the first (x)."""
    present = {rank: curve for rank, curve in sorted(curves.items()) if len(curve.times)}
    if not present:
        return theme.nothing("No memory figures: they come with the first second of the training.")
    unit = unit_for((value for curve in present.values() for value in curve.values), "B")
    start = min(float(curve.times[0]) for curve in present.values()) if start is None else start
    drawing = go.Figure(
        layout=theme.layout(
            title="Memory",
            subtitle="in use at the end of each step"
            if -1 not in present
            else "ranks at each step, all processes once a second",
            x="Time since the first measurement (s)",
            y=f"Memory ({unit.name})",
            xaxis={"rangemode": "tozero"},
            yaxis={"rangemode": "tozero"},
        )
    )
    for rank, curve in _drawn(present).items():
        seconds = [round(float(time) - start, 3) for time in curve.times]
        drawing.add_trace(_trace(rank, curve, seconds, unit, "B"))
    drawing.update_layout(showlegend=len(present) > 1)
    most = max(float(value) for curve in present.values() for value in curve.values)
    said = f"{quantity(most, 'B')} at most: GPU memory where ranks train on GPUs, process memory otherwise."
    return Drawing(drawing, said, _table(present, "memory_bytes"))


def _drawn(curves: Mapping[int, Curve]) -> dict[int, Curve]:
    """Draw a few ranks one by one; of many only the one with the highest and the one with the lowest median."""
    ranks = [rank for rank in curves if rank >= 0]
    if len(ranks) <= theme.MAX_RANKS:
        return dict(curves)
    by_middle = sorted(ranks, key=lambda rank: sorted(curves[rank].values)[len(curves[rank].values) // 2])
    shown = {rank for rank in curves if rank < 0} | {by_middle[0], by_middle[-1]}
    return {rank: curve for rank, curve in curves.items() if rank in shown}


def _trace(rank: int, curve: Curve, x: Sequence[float], unit: Unit, base: str) -> go.Scatter:
    name = "all processes" if rank < 0 else f"rank {rank}"
    evenly = len(x) <= 60 and all(after >= before for before, after in pairwise(x))
    return go.Scatter(
        x=x,
        y=[float(value) / unit.factor for value in curve.values],
        name=name,
        # One point makes no line.
        mode="lines+markers" if (evenly and rank >= 0) or len(x) == 1 else "lines",
        line={"color": theme.rank_colour(rank), "width": 1.5, "dash": "dot" if rank < 0 else "solid"},
        marker={"size": 5, "symbol": theme.SYMBOLS[rank % len(theme.SYMBOLS)]},
        customdata=[[int(step), float(value)] for step, value in zip(curve.steps, curve.values, strict=True)],
        hovertemplate=f"{name}<br>step %{{customdata[0]}}<br>%{{customdata[1]}} {base}<extra></extra>",
    )


def _table(curves: Mapping[int, Curve], column: str) -> Table:
    rows = [
        [rank, int(step), float(time), float(value)]
        for rank, curve in curves.items()
        for step, time, value in zip(curve.steps, curve.times, curve.values, strict=True)
    ]
    return Table(["rank", "step", "unix_time_s", column], rows)
