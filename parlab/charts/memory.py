"""Peak memory of an experiment's runs: one bar per rank, or the range over the ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from . import theme
from .axes import GPUS, RUN, Plan, alike, emulation_mark, names_of, plan, series_name, x_axis, x_of
from .format import Unit, field_title, quantity, unit_for
from .measures import AUTO, Options
from .points import MAX_BARS, RunPoint, fastest, in_order, is_number
from .theme import Drawing, Table
from .throughput import out_of_memory

MAX_BANDS = 8
"""Bands over each other that still can be told apart."""


def figure(points: Sequence[RunPoint], options: Options = AUTO) -> Drawing:
    """Draw peak memory (y), from the least to the most of the ranks.

    Where GPUs vary, or a person chose an axis of numbers, as bands against it (x), one for each line of runs. Else
    against the run: grouped bars per rank, or floating bars. Hatched bars are runs that were out of memory: what they
    held when they gave up.
    """
    measured = [point for point in points if point.memory_max is not None or point.memory_by_rank]
    if not measured:
        if any(point.is_published for point in points):
            return theme.nothing("No peak memory: these figures were published without it.")
        if any(point.state == "finished" for point in points):
            return theme.nothing("No peak memory: the training did not measure it.")
        return theme.nothing("No peak memory yet: no run has finished.")
    banded = _bands(points, measured, options)
    if banded is not None:
        return Drawing(banded, _caption(points, measured), _table(measured))
    everything = measured
    unmeasured = [point for point in points if point.state == "oom" and point not in measured][:MAX_BARS]
    measured, left_out = fastest(measured)
    by_number = sorted([*measured, *unmeasured], key=lambda point: point.number)
    unit = unit_for((_most(point) for point in measured), "B")
    ranks = sorted({rank for point in measured for rank in point.memory_by_rank})
    by_rank = all(point.memory_by_rank for point in measured) and len(ranks) <= theme.MAX_RANKS
    drawing = go.Figure(
        layout=theme.layout(
            title="Memory per rank",
            subtitle="highest use over the run" if by_rank else "highest use, from the least to the most of the ranks",
            x="Run",
            y=f"Peak memory ({unit.name})",
            barmode="group",
            bargap=0.25,
            bargroupgap=0.05,
            xaxis=theme.runs_axis([point.short_label for point in by_number]),
            yaxis={"rangemode": "tozero"},
        )
    )
    if by_rank:
        for rank in ranks:
            drawing.add_trace(_rank_bars(measured, rank, unit))
    else:
        drawing.add_trace(_range_bars(measured, unit))
    _add_out_of_memory(drawing, unmeasured)
    drawing.update_layout(showlegend=by_rank and len(ranks) > 1)
    return Drawing(drawing, _caption(points, everything) + left_out, _table(everything))


def _bands(points: Sequence[RunPoint], measured: Sequence[RunPoint], options: Options) -> go.Figure | None:
    """Draw bands against an axis of numbers; None where there is none, or more lines than can be told apart."""
    fitting = [point for point in measured if point.state != "oom"]
    if not fitting:
        return None
    members, _ = alike(points, fitting)
    fitting = [point for point in members if point in fitting]
    chosen = plan(members, options)
    is_asked_for = chosen.x == GPUS or (options.x and options.x == chosen.x)
    if not is_asked_for or chosen.x == RUN or not all(is_number(x_of(point, chosen.x)) for point in members):
        return None
    lines: dict[tuple[str, ...], list[RunPoint]] = {}
    for point in sorted(fitting, key=lambda point: float(x_of(point, chosen.x))):
        lines.setdefault(names_of(point, chosen.lines), []).append(point)
    if len(lines) > MAX_BANDS:
        return None
    unit = unit_for((_most(point) for point in fitting), "B")
    drawing = go.Figure(
        layout=theme.layout(
            title="Memory per rank",
            subtitle="highest use: a band from the least to the most of the ranks, marked at the most",
            x=theme.plain(field_title(chosen.x)) if chosen.x != GPUS else GPUS,
            y=f"Peak memory ({unit.name})",
            xaxis=_with_room(in_order(x_of(point, chosen.x) for point in members), chosen, options),
            yaxis={"type": "log"} if options.y_scale == "log" else {"rangemode": "tozero"},
        )
    )
    styles = theme.styles(list(lines))
    for names, line in lines.items():
        title = theme.plain(series_name(names, chosen.lines) + emulation_mark(line))
        for trace in _band(line, title, styles[names], chosen, unit):
            drawing.add_trace(trace)
    too_big = [point for point in members if point.state == "oom"]
    if too_big:
        least = min(_least(point) for point in fitting) / unit.factor
        drawing.add_trace(out_of_memory(too_big, chosen, least / 2 if options.y_scale == "log" else 0.0))
    drawing.update_layout(showlegend=len(lines) > 1 or bool(too_big))
    return drawing


def _with_room(values: Sequence[float], chosen: Plan, options: Options) -> dict[str, Any]:
    """Leave room for the marks at both ends: Plotly draws a filled ground from edge to edge."""
    axis = x_axis(values, chosen.x, options)
    low, high = (math.log10(end) if axis["type"] == "log" else float(end) for end in (values[0], values[-1]))
    room = 0.05 * (high - low) or 0.5
    return {**axis, "range": [low - room, high + room]}


def _band(line: Sequence[RunPoint], title: str, style: theme.Style, chosen: Plan, unit: Unit) -> list[go.Scatter]:
    """Draw the least without a mark, then the most with the ground down to it."""
    x = [x_of(point, chosen.x) for point in line]
    low = go.Scatter(
        x=x,
        y=[_least(point) / unit.factor for point in line],
        name=title,
        legendgroup=title,
        showlegend=False,
        mode="lines",
        line={"color": style.colour, "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )
    high = go.Scatter(
        x=x,
        y=[_most(point) / unit.factor for point in line],
        name=title,
        legendgroup=title,
        mode="lines+markers",
        fill="tonexty",
        fillcolor=theme.faint(style.colour),
        line={"color": style.colour, "width": 1.5, "dash": style.dash},
        marker={"color": style.colour, "symbol": style.symbol, "size": 8},
        hovertext=[p.hover(("least", _least(p), "B"), ("most", _most(p), "B")) for p in line],
        hoverinfo="text",
    )
    return [low, high]


def _least(point: RunPoint) -> float:
    return (
        point.memory_min if point.memory_min is not None else min(point.memory_by_rank.values(), default=_most(point))
    )


def _most(point: RunPoint) -> float:
    return point.memory_max if point.memory_max is not None else max(point.memory_by_rank.values())


def _hatch(points: Sequence[RunPoint]) -> dict[str, object]:
    return {"shape": ["/" if point.state == "oom" else "" for point in points], "solidity": 0.5}


def _rank_bars(measured: Sequence[RunPoint], rank: int, unit: Unit) -> go.Bar:
    values = [point.memory_by_rank.get(rank) for point in measured]
    return go.Bar(
        x=[point.short_label for point in measured],
        y=[None if value is None else value / unit.factor for value in values],
        name=f"rank {rank}",
        marker={"color": theme.rank_colour(rank), "pattern": _hatch(measured)},
        hovertext=[p.hover((f"rank {rank}", v, "B")) for p, v in zip(measured, values, strict=True)],
        hoverinfo="text",
        textposition="none",
    )


def _range_bars(measured: Sequence[RunPoint], unit: Unit) -> go.Bar:
    # Ranks that hold the same amount would make a bar of no height.
    thinnest = max(_most(point) for point in measured) / 200
    return go.Bar(
        x=[point.short_label for point in measured],
        base=[min(_least(point), _most(point) - thinnest) / unit.factor for point in measured],
        y=[max(_most(point) - _least(point), thinnest) / unit.factor for point in measured],
        name="all ranks",
        marker={"color": theme.SKY, "pattern": _hatch(measured)},
        hovertext=[p.hover(("least", _least(p), "B"), ("most", _most(p), "B")) for p in measured],
        hoverinfo="text",
        textposition="none",
    )


def _add_out_of_memory(drawing: go.Figure, unmeasured: Sequence[RunPoint]) -> None:
    """Name the runs that gave up before they said how much they held, so that they do not look forgotten."""
    if unmeasured:
        drawing.add_trace(
            go.Scatter(
                x=[point.short_label for point in unmeasured],
                y=[0.0] * len(unmeasured),
                name="OOM",
                mode="text",
                text=["OOM"] * len(unmeasured),
                textposition="top center",
                hovertext=[point.hover() for point in unmeasured],
                hoverinfo="text",
                showlegend=False,
            )
        )


def _caption(points: Sequence[RunPoint], measured: Sequence[RunPoint]) -> str:
    biggest, smallest = max(measured, key=_most), min(measured, key=_most)
    said = f"{quantity(_most(biggest), 'B')} at most, with {biggest.label} (run {biggest.number})"
    if _most(biggest) > _most(smallest):
        said += f"; the leanest run needs {quantity(_most(smallest), 'B')} (run {smallest.number})"
    too_big = [f"run {point.number}" for point in points if point.state == "oom"]
    return said + (f". Out of memory: {', '.join(too_big)}." if too_big else ".")


def _table(measured: Sequence[RunPoint]) -> Table:
    axes = list(dict.fromkeys(axis for point in measured for axis in point.values))
    header = ["run", *axes, "state", "rank", "memory_peak_bytes"]
    rows = []
    for point in measured:
        start = [point.number, *(point.values.get(axis) for axis in axes), point.outcome]
        ranks = sorted(point.memory_by_rank.items())
        rows += [[*start, rank, value] for rank, value in ranks]
        if not ranks:
            rows += [[*start, "min", point.memory_min], [*start, "max", point.memory_max]]
    return Table(header, rows)
