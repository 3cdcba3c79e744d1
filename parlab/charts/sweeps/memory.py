"""Peak memory of an experiment's runs: one bar per rank, or the range over the ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.axes import (
    GPUS,
    RUN,
    Plan,
    alike,
    axis_title,
    emulation_mark,
    names_of,
    plan,
    series_name,
    x_axis,
    x_of,
)
from parlab.charts.format import SPACE, Unit, quantity, significant, unit_for
from parlab.charts.labels import BOUND, NUMBERED, label_ends, mark_best
from parlab.charts.measures import AUTO, Available, Options
from parlab.charts.points import MAX_BARS, MemoryBound, RunPoint, fastest, in_order, is_number, with_kinds
from parlab.charts.repeats import error_bars, lead_note
from parlab.charts.theme import Drawing, Table

from .throughput import out_of_memory

TITLE = "Memory per rank"
MAX_BANDS = 8
"""More overlapping bands cannot be told apart."""
NEAR = 0.4
"""From this share of the bound on, the figure shows it; below, its line would leave no room for the runs."""
MAX_NUMBERED = 48
"""More bars have no room for the number of their rank."""


def missing(available: Available) -> str:
    """Say why there is no peak memory to draw; empty where there is."""
    points = available.points
    if any(_is_measured(point) for point in points):
        return ""
    if any(point.is_published for point in points):
        return "the published figures do not include it"
    return "the runs did not measure it" if any(p.state == "finished" for p in points) else "no run has finished"


def _is_measured(point: RunPoint) -> bool:
    return point.memory_max is not None or bool(point.memory_by_rank)


def figure(points: Sequence[RunPoint], options: Options = AUTO) -> Drawing:
    """Draw peak memory (y), from the least to the most of the ranks.

    Where the number of GPUs varies, or the chosen x axis is numeric: one band per line of runs against that axis.
    Otherwise against the run: grouped bars per rank, or floating bars. Hatched bars are runs that ran out of memory;
    they show the memory at the time of failure.
    """
    if reason := missing(Available(points)):
        return theme.missing(TITLE, reason)
    measured = [point for point in points if _is_measured(point)]
    banded = _banded(points, measured, options)
    if banded is not None:
        return Drawing(_band_figure(banded, options), _memory_caption(points, measured), _memory_table(measured))
    unmeasured = [point for point in points if point.state == "oom" and point not in measured][:MAX_BARS]
    drawn, left_out = fastest(measured)
    return Drawing(
        _bar_figure(drawn, unmeasured), _memory_caption(points, measured) + left_out, _memory_table(measured)
    )


def _bar_figure(measured: Sequence[RunPoint], unmeasured: Sequence[RunPoint]) -> go.Figure:
    """Draw one group of bars per run; runs that ran out of memory before they reported any are only named."""
    by_number = sorted([*measured, *unmeasured], key=lambda point: point.number)
    unit = unit_for((_most(point) for point in measured), "B")
    ranks = sorted({rank for point in measured for rank in point.memory_by_rank})
    by_rank = all(point.memory_by_rank for point in measured) and len(ranks) <= theme.MAX_RANKS
    drawing = go.Figure(
        layout=theme.layout(
            title=TITLE,
            subtitle=_subtitle(measured, by_rank),
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
    is_numbered = by_rank and len(ranks) > 1 and len(ranks) * len(by_number) <= MAX_NUMBERED
    if is_numbered:
        drawing.update_traces(NUMBERED, selector={"type": "bar"})
    drawing.update_layout(showlegend=by_rank and len(ranks) > 1 and not is_numbered)
    _add_bounds(drawing, [*measured, *unmeasured], unit)
    return drawing


def _subtitle(measured: Sequence[RunPoint], by_rank: bool) -> str:
    which = (
        "highest use of each rank, by its number" if by_rank else "highest use, from the least to the most of the ranks"
    )
    return f"{which}: mean of the repeats, bars over their range" if any(p.repeats for p in measured) else which


def _add_bounds(drawing: go.Figure, points: Sequence[RunPoint], unit: Unit) -> None:
    """Draw the memory that a rank can use, where a run comes near it or ran out of memory."""
    for bound in _bounds(points):
        drawing.add_hline(
            y=bound.bytes / unit.factor,
            line={"dash": "dot", "width": 1, "color": theme.OOM_COLOUR},
            annotation={
                "name": BOUND,
                "text": theme.plain(f"{quantity(bound.bytes, 'B')}, {bound.name}"),
                "font": {"size": 12},
            },
            annotation_position="top left",
        )


def _bounds(points: Sequence[RunPoint]) -> list[MemoryBound]:
    near = [
        point.memory_bound
        for point in points
        if point.memory_bound and (point.state == "oom" or (_peak(point) or 0.0) >= NEAR * point.memory_bound.bytes)
    ]
    return list(dict.fromkeys(near))


class _Banded(NamedTuple):
    """Runs as lines against a numeric axis."""

    axes: Plan
    members: list[RunPoint]
    """All runs with these axes, measured or not."""
    lines: dict[tuple[str, ...], list[RunPoint]]


def _banded(points: Sequence[RunPoint], measured: Sequence[RunPoint], options: Options) -> _Banded | None:
    """Group runs into lines for bands; None without a numeric x axis, or with more lines than can be told apart."""
    fitting = [point for point in measured if point.state != "oom"]
    if not fitting:
        return None
    members, _ = alike(points, fitting)
    axes = plan(members, options)
    is_chosen = axes.x == GPUS or (options.x and options.x == axes.x)
    if not is_chosen or axes.x == RUN or not all(is_number(x_of(point, axes.x)) for point in members):
        return None
    lines: dict[tuple[str, ...], list[RunPoint]] = {}
    for point in sorted((point for point in members if point in fitting), key=lambda p: float(x_of(p, axes.x))):
        lines.setdefault(names_of(point, axes.lines), []).append(point)
    return _Banded(axes, members, lines) if len(lines) <= MAX_BANDS else None


def _band_figure(banded: _Banded, options: Options) -> go.Figure:
    axes, members, lines = banded
    fitting = [point for line in lines.values() for point in line]
    unit = unit_for((_most(point) for point in fitting), "B")
    drawing = go.Figure(
        layout=theme.layout(
            title=TITLE,
            subtitle="highest use: a band from the least to the most of the ranks, with a marker at the most",
            x=axis_title(axes.x, fitting),
            y=f"Peak memory ({unit.name})",
            xaxis=_with_room(in_order(x_of(point, axes.x) for point in members), axes, options),
            yaxis={"type": "log"} if options.y_scale == "log" else {"rangemode": "tozero"},
        )
    )
    styles = theme.styles(list(lines))
    for names, line in lines.items():
        title = theme.plain(series_name(names, axes.lines) + emulation_mark(line))
        for trace in _band(line, title, styles[names], axes, unit):
            drawing.add_trace(trace)
    too_big = [point for point in members if point.state == "oom"]
    if too_big:
        least = min(_least(point) for point in fitting) / unit.factor
        drawing.add_trace(out_of_memory(too_big, axes, least / 2 if options.y_scale == "log" else 0.0))
    drawing.update_layout(showlegend=len(lines) > 1 or bool(too_big))
    label_ends(drawing)
    _add_bounds(drawing, members, unit)
    lightest = min(fitting, key=_most)
    if len(fitting) > 1 and _most(lightest) < max(map(_most, fitting)):
        mark_best(drawing, x_of(lightest, axes.x), _most(lightest) / unit.factor, f"least {_most_text(lightest)}")
    return drawing


def _with_room(values: Sequence[float], axes: Plan, options: Options) -> dict[str, Any]:
    """Extend the axis beyond its markers: Plotly fills a band from edge to edge."""
    axis = x_axis(values, axes.x, options)
    low, high = (math.log10(end) if axis["type"] == "log" else float(end) for end in (values[0], values[-1]))
    room = 0.05 * (high - low) or 0.5
    return {**axis, "range": [low - room, high + room]}


def _band(line: Sequence[RunPoint], title: str, style: theme.Style, axes: Plan, unit: Unit) -> list[go.Scatter]:
    """Draw the least without markers, then the most, filled down to the least."""
    x = [x_of(point, axes.x) for point in line]
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
        error_y=error_bars(line, _peak, unit.factor),
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


def _peak(point: RunPoint) -> float | None:
    return _most(point) if _is_measured(point) else None


def _hatch(points: Sequence[RunPoint]) -> dict[str, object]:
    return {"shape": ["/" if point.state == "oom" else "" for point in points], "solidity": 0.5}


def _rank_bars(measured: Sequence[RunPoint], rank: int, unit: Unit) -> go.Bar:
    values = [point.memory_by_rank.get(rank) for point in measured]
    return go.Bar(
        x=[point.short_label for point in measured],
        y=[None if value is None else value / unit.factor for value in values],
        name=f"rank {rank}",
        marker={"color": theme.rank_colour(rank), "pattern": _hatch(measured)},
        text=str(rank),
        error_y=error_bars(measured, lambda point: point.memory_by_rank.get(rank), unit.factor),
        hovertext=[p.hover((f"rank {rank}", v, "B")) for p, v in zip(measured, values, strict=True)],
        hoverinfo="text",
        textposition="none",
    )


def _range_bars(measured: Sequence[RunPoint], unit: Unit) -> go.Bar:
    # Ranks with equal memory would make a bar without height.
    thinnest = max(_most(point) for point in measured) / 200
    return go.Bar(
        x=[point.short_label for point in measured],
        base=[min(_least(point), _most(point) - thinnest) / unit.factor for point in measured],
        y=[max(_most(point) - _least(point), thinnest) / unit.factor for point in measured],
        name="all ranks",
        marker={"color": theme.SKY, "pattern": _hatch(measured)},
        error_y=error_bars(measured, _peak, unit.factor),
        hovertext=[p.hover(("least", _least(p), "B"), ("most", _most(p), "B")) for p in measured],
        hoverinfo="text",
        textposition="none",
    )


def _add_out_of_memory(drawing: go.Figure, unmeasured: Sequence[RunPoint]) -> None:
    """Label the runs that ran out of memory before they reported their use."""
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


def _most_text(point: RunPoint) -> str:
    most = _most(point)
    return quantity(most, "B", point.digits(most, "B"))


def _memory_caption(points: Sequence[RunPoint], measured: Sequence[RunPoint]) -> str:
    biggest, smallest = max(measured, key=_most), min(measured, key=_most)
    caption = f"Highest: {_most_text(biggest)}, {biggest.full_label}"
    if _most(biggest) > _most(smallest):
        caption += f"; lowest: {_most_text(smallest)} ({smallest.runs})"
    too_big = [f"run {point.number}" for point in points if point.state == "oom"]
    fitting = [point for point in measured if point.state != "oom"]
    return (
        f"{caption}.{_bound_note(biggest)}{lead_note(fitting, _peak, least_is_best=True, subject='The lowest peak')}"
        + (f" Out of memory: {', '.join(too_big)}." if too_big else "")
    )


def _bound_note(point: RunPoint) -> str:
    """State the share of the bound that a run uses, where the figure does not show the bound."""
    bound = point.memory_bound
    if bound is None or _bounds([point]):
        return ""
    share = significant(100 * _most(point) / bound.bytes, 2)
    return f" That is {share}{SPACE}% of the {quantity(bound.bytes, 'B')} of {bound.name}."


def _memory_table(measured: Sequence[RunPoint]) -> Table:
    axes = list(dict.fromkeys(axis for point in measured for axis in point.values))
    header = ["run", *axes, "state", "rank", "memory_peak_bytes"]
    rows: list[list[Any]] = []
    owners: list[RunPoint] = []
    for point in measured:
        start = [point.number, *(point.values.get(axis) for axis in axes), point.outcome]
        ranks = sorted(point.memory_by_rank.items())
        rows += [[*start, rank, value] for rank, value in ranks]
        if not ranks:
            rows += [[*start, "min", point.memory_min], [*start, "max", point.memory_max]]
        owners += [point] * (len(rows) - len(owners))
    return with_kinds(header, rows, owners)
