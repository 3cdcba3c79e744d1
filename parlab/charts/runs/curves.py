"""Curves of a run: step time and other series over steps, memory over time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.format import Unit, quantity, unit_for
from parlab.charts.labels import label_ends
from parlab.charts.points import Spread
from parlab.charts.stacked import compared_by_hover
from parlab.charts.theme import Drawing, Table


class Curve(NamedTuple):
    """A series of a rank: columns of equal length; `times` in Unix seconds."""

    steps: Sequence[int]
    times: Sequence[float]
    values: Sequence[float]


def rounded(values: Sequence[float], factor: float = 1.0) -> list[float]:
    """Scale values and round them to six digits: more than a screen resolves, in a third of the bytes."""
    return [float(f"{float(value) / factor:.6g}") for value in values]


def step_time(
    curves: Mapping[int, Curve],
    *,
    warmup_steps: int,
    iterations: int,
    unit: Unit | None = None,
    ranks: Collection[int] | None = None,
    spread: Spread | None = None,
    left_out: Collection[int] = (),
    why: str = "",
    start: float | None = None,
    is_over: bool = False,
) -> Drawing:
    """Draw step time (y) of each rank against the step (x); steps without part in the statistics are shaded.

    `left_out` are these, of which `why` says whether they were warm-up or recorded by a profiler. The axis has all
    planned steps unless the run `is_over`.

    `unit` is the unit of the whole curves if these are a part of them, since both share an axis. `ranks` are those
    to draw, by default all of a few, else those with the lowest and the highest median. The range of `spread` is a
    band. With `start`, a Unix time, x is the time since then.
    """
    present = {rank: curve for rank, curve in sorted(curves.items()) if len(curve.steps)}
    if not present:
        return theme.missing("Step time", "no step has finished")
    unit = unit or unit_for((value for curve in present.values() for value in curve.values), "s")
    steps = [int(step) for curve in present.values() for step in curve.steps]
    last = max(steps)
    planned = _axis_of_steps(min(steps), last, 0 if is_over else iterations)
    has_band = spread is not None and bool(spread.p10)
    drawing = go.Figure(
        layout=theme.layout(
            title="Step time",
            subtitle="each measured step" + ("; band: p10 to p90, dashed: median" if has_band else ""),
            x="Step" if start is None else TIME,
            y=f"Step time ({unit.name})",
            xaxis=planned if start is None else {"rangemode": "tozero"},
            yaxis={"rangemode": "tozero"},
            meta={"unit": f"{unit.name}, band p10\N{EN DASH}p90" if has_band else unit.name},
        )
    )
    if start is None:
        _shade(drawing, warmup_steps, left_out, why)
    if spread is not None:
        _add_spread(drawing, spread, unit)
    for rank, curve in _drawn(present, ranks).items():
        drawing.add_trace(_trace(rank, curve, _across(curve, start), unit))
    drawing.update_layout(showlegend=len(present) > 1)
    label_ends(drawing)
    caption = _counted(last, iterations, warmup_steps) + _which(present, ranks)
    table = _curves_table(present, "step_time_s")
    return compared_by_hover(Drawing(drawing, caption, table), "step %{x}" if start is None else "%{x} s")


def _shade(drawing: go.Figure, warmup_steps: int, left_out: Collection[int], why: str) -> None:
    """Shade the steps that have no part in the statistics, and name them."""
    shaded = [(1, warmup_steps, "warm-up")] if warmup_steps else []
    others = [stretch for stretch in _stretches(left_out) if stretch[0] > warmup_steps]
    if "warm-up" in why and not warmup_steps and others:
        shaded.append((*others.pop(0), "warm-up"))
    name = "profiler" if "profiler" in why else "left out"
    shaded += [(first, final, name) for first, final in others]
    for first_step, final, name in shaded:
        drawing.add_shape(**_shaded(first_step, final), label=_shade_label(name))


def with_repeated(drawing: Drawing, ranges: Sequence[tuple[int, int]]) -> Drawing:
    """Shade the steps that were made again after a reload, given as (first, last), and count them in the caption."""
    assert drawing.figure is not None
    for number, (first, last) in enumerate(ranges[:MOST_REPEATED]):
        name = {} if number else {"label": _shade_label("made again")}  # several names would cover each other
        drawing.figure.add_shape(**_shaded(first, last), **name)
    count = sum(last - first + 1 for first, last in ranges)
    steps = "1 step was" if count == 1 else f"{count:,} steps were"
    return drawing._replace(caption=f"{drawing.caption} {steps} made again (shaded), and counted once.".strip())


def _counted(last: int, iterations: int, warmup_steps: int) -> str:
    text = f"{last} of {iterations} steps." if iterations >= last else f"{last} steps."
    if not warmup_steps:
        return text
    first = "The first (shaded) is" if warmup_steps == 1 else f"The first {warmup_steps} (shaded) are"
    return f"{text} {first} warm-up, excluded from the statistics."


FEW_STEPS = 12
"""So many steps have a tick each; Plotly would label parts of a step."""
MOST_REPEATED = 50
"""Ranges of repeated steps that a figure shades."""
TIME = "Time since the first measurement (s)"


def _axis_of_steps(first: int, last: int, planned: int) -> dict[str, Any]:
    """Return the axis of the planned steps, from the first on; if nothing is planned any more, of those that are."""
    begin = 1 if planned or first <= 0.1 * last else first
    end = max(planned, last, 1)  # a user's own command can train for more iterations than configured
    return {"range": [begin - 0.5, end + 0.5], "tickformat": "d", **({"dtick": 1} if end - begin <= FEW_STEPS else {})}


def _across(curve: Curve, start: float | None) -> list[float]:
    """Return the x of a curve: its steps, or the seconds since a moment."""
    return list(curve.steps) if start is None else [round(float(time) - start, 3) for time in curve.times]


def _stretches(steps: Collection[int]) -> list[tuple[int, int]]:
    """Return runs of successive steps: 1, 2, 10, 11 as (1, 2), (10, 11)."""
    stretches: list[tuple[int, int]] = []
    for step in sorted(steps):
        if stretches and step == stretches[-1][1] + 1:
            stretches[-1] = (stretches[-1][0], step)
        else:
            stretches.append((step, step))
    return stretches


def _shaded(first: int, final: int) -> dict[str, Any]:
    place = {"x0": first - 0.5, "x1": final + 0.5, "y0": 0, "y1": 1, "yref": "y domain"}
    return {"type": "rect", **place, "fillcolor": theme.GREY, "opacity": 0.15, "line": {"width": 0}, "layer": "below"}


def _shade_label(name: str) -> dict[str, Any]:
    return {"text": name, "textposition": "top left", "font": {"size": 11, "color": theme.GREY}, "padding": 3}


def _add_spread(drawing: go.Figure, spread: Spread, unit: Unit) -> None:
    """Draw the range of the usual steps as a band, and their median as a dashed line."""
    across = {"x0": 0, "x1": 1, "xref": "paper", "layer": "below"}
    if spread.p10 is not None and spread.p90 is not None:
        ends = {"y0": spread.p10 / unit.factor, "y1": spread.p90 / unit.factor}
        drawing.add_shape(type="rect", **across, **ends, fillcolor=theme.faint(theme.BLUE, 0.14), line={"width": 0})
    middle = spread.median / unit.factor
    line = {"color": theme.BLUE, "width": 1, "dash": "4px,3px"}
    drawing.add_shape(type="line", **across, y0=middle, y1=middle, line=line)


def memory(
    curves: Mapping[int, Curve],
    *,
    start: float | None = None,
    unit: Unit | None = None,
    nodes: Sequence[str] = (),
    ranks: Collection[int] | None = None,
    by_step: bool = False,
) -> Drawing:
    """Draw memory (y) of each rank, and of all processes of a node as rank -1 - node rank, against seconds (x).

    `nodes` are the names of the nodes, where there are several. With `by_step` only the ranks, against the step.
    """
    present = {rank: curve for rank, curve in sorted(curves.items()) if len(curve.times)}
    if not present:
        return theme.missing("Memory", "not measured yet")
    unit = unit or unit_for((value for curve in present.values() for value in curve.values), "B")
    start = min(float(curve.times[0]) for curve in present.values()) if start is None else start
    drawing = go.Figure(
        layout=theme.layout(
            title="Memory",
            subtitle="in use at the end of each step"
            if min(present) >= 0
            else "ranks at each step, all processes once a second",
            x="Step" if by_step else TIME,
            y=f"Memory ({unit.name})",
            xaxis={"tickformat": "d"} if by_step else {"rangemode": "tozero"},
            yaxis={"rangemode": "tozero"},
            meta={"unit": f"{unit.name} per rank" if min(present) >= 0 else unit.name},
        )
    )
    drawn = _drawn(present, ranks)
    for rank, curve in drawn.items():
        drawing.add_trace(_trace(rank, curve, _across(curve, None if by_step else start), unit, nodes))
    if by_step:
        drawing.data[0].update(fill="tozeroy", fillcolor=theme.faint(theme.rank_colour(min(drawn)), 0.12))
    drawing.update_layout(showlegend=len(present) > 1)
    label_ends(drawing)
    most = max(float(value) for curve in present.values() for value in curve.values)
    caption = f"Peak: {quantity(most, 'B')} (GPU memory for ranks on GPUs, process memory otherwise)."
    caption += _which(present, ranks)
    position = "step %{x}" if by_step else "%{x} s"
    return compared_by_hover(Drawing(drawing, caption, _curves_table(present, "memory_bytes")), position)


def series(
    curves: Mapping[int, Curve],
    *,
    name: str,
    title: str,
    unit: Unit,
    ranks: Collection[int] | None = None,
    start: float | None = None,
) -> Drawing:
    """Draw any series (y) of each rank against the step (x), or the time since `start`; `name` is the CSV's column."""
    present = {rank: curve for rank, curve in sorted(curves.items()) if len(curve.steps)}
    if not present:
        return theme.missing(title, "the training has printed none")
    drawing = go.Figure(
        layout=theme.layout(
            title=title,
            subtitle="each printed step",
            x="Step" if start is None else TIME,
            y=f"{title} ({unit.name})" if unit.name else title,
            xaxis=_step_axis(present) if start is None else {"rangemode": "tozero"},
            # Times start at zero; other series, such as the loss, have no natural zero.
            yaxis={"rangemode": "tozero"} if unit.base == "s" else {},
        )
    )
    for rank, curve in _drawn(present, ranks).items():
        drawing.add_trace(_trace(rank, curve, _across(curve, start), unit))
    drawing.update_layout(showlegend=len(present) > 1)
    rank, curve = next(iter(_drawn(present, ranks).items()), next(iter(present.items())))
    ends = [0, -1] if len(curve.steps) > 1 else [0]
    readings = [f"{quantity(float(curve.values[at]), unit.base).strip()} at step {curve.steps[at]}" for at in ends]
    caption = f"Rank {rank}: {', '.join(readings)}.{_which(present, ranks)}"
    position = "step %{x}" if start is None else "%{x} s"
    return compared_by_hover(Drawing(drawing, caption, _curves_table(present, name)), position)


_PHASE_COLOURS = (
    ("forward-compute", "forward", theme.BLUE),
    ("backward-compute", "backward", theme.GREEN),
    ("backward-weight", "weight gradients", theme.SKY),
    ("-recv", "", theme.GREY),
    ("-send", "", theme.ORANGE),
    ("-all-reduce", "", theme.VERMILLION),
    ("-sync", "", theme.VERMILLION),
    ("-all-gather", "", theme.VERMILLION),
    ("-reduce-scatter", "", theme.VERMILLION),
    ("optimizer", "optimizer", theme.PURPLE),
    ("batch-generator", "loading", theme.YELLOW),
)
"""Timer or its end, how it is called, and the colour of its term: see LOOKS of step_bar."""
_VISIBLE = 0.002
"""Share of the longest phase below which another one has no visible bar."""
_SHORT_PHASES = {"backward-params-all-reduce": "gradients", "all-grads-sync": "gradients"}


def phase_look(timer: str) -> tuple[str, str]:
    """Return the name and the colour of a timer in a stack."""
    for end, name, colour in _PHASE_COLOURS:
        if timer.endswith(end):
            return name or _SHORT_PHASES.get(timer, timer), colour
    return timer, theme.GREY


def _phase_place(timer: str) -> int:
    ends = [end for end, _, _ in _PHASE_COLOURS]
    return next((place for place, end in enumerate(ends) if timer.endswith(end)), len(ends))


def phases(curves: Mapping[str, Curve], *, unit: Unit) -> Drawing:
    """Draw the seconds of each timer of a rank (y), stacked, against the step (x)."""
    longest = max((float(value) for curve in curves.values() for value in curve.values), default=0.0)
    present = {
        timer: curves[timer]
        for timer in sorted(curves, key=_phase_place)
        if len(curves[timer].steps) and max(curves[timer].values) > _VISIBLE * longest
    }
    if not present:
        return theme.missing("Phases", "the training printed no timers")
    drawing = go.Figure(
        layout=theme.layout(
            title="Phases",
            subtitle="rank 0, each measured step",
            x="Step",
            y=f"Time ({unit.name})",
            barmode="stack",
            bargap=0.08,
            showlegend=True,
            xaxis={"tickformat": "d"},
            yaxis={"rangemode": "tozero"},
            meta={"unit": f"{unit.name}, rank 0"},
        )
    )
    for timer, curve in present.items():
        name, colour = phase_look(timer)
        drawing.add_trace(
            go.Bar(
                x=list(curve.steps),
                y=rounded(curve.values, unit.factor),
                name=theme.plain(name),
                marker={"color": colour, "line": {"width": 0}},
                hovertemplate=f"%{{y}} {unit.name}<extra>{theme.plain(timer)}</extra>",
            )
        )
    rows = [
        [timer, int(step), float(value)]
        for timer, curve in present.items()
        for step, value in zip(curve.steps, curve.values, strict=True)
    ]
    return compared_by_hover(Drawing(drawing, "", Table(["timer", "step", "seconds"], rows)), "step %{x}")


def _step_axis(curves: Mapping[int, Curve]) -> dict[str, Any]:
    steps = {int(step) for curve in curves.values() for step in curve.steps}
    if len(steps) > 1:
        return {"tickformat": "d"} | ({"dtick": 1} if max(steps) - min(steps) <= FEW_STEPS else {})
    # Around a single step, Plotly would place several ticks that round to the same number.
    return {"tickmode": "array", "tickvals": sorted(steps), "tickformat": "d"}


def _drawn(curves: Mapping[int, Curve], ranks: Collection[int] | None = None) -> dict[int, Curve]:
    """Return the curves of these ranks, by default of a few; of many those with the highest and lowest median."""
    if ranks is not None:
        return {rank: curve for rank, curve in curves.items() if rank in ranks or rank < 0}
    chosen: set[int] = set()
    for members in ([rank for rank in curves if rank >= 0], [rank for rank in curves if rank < 0]):
        by_middle = sorted(members, key=lambda rank: sorted(curves[rank].values)[len(curves[rank].values) // 2])
        chosen.update(members if len(members) <= theme.MAX_RANKS else (by_middle[0], by_middle[-1]))
    return {rank: curve for rank, curve in curves.items() if rank in chosen}


def _which(curves: Mapping[int, Curve], ranks: Collection[int] | None) -> str:
    """Return a sentence about the choice of a figure that does not draw all ranks; empty where it does."""
    count = sum(rank >= 0 for rank in curves)
    if ranks is not None or count <= theme.MAX_RANKS:
        return ""
    return f" Of {count} ranks, those with the lowest and the highest median are drawn."


def _name(rank: int, nodes: Sequence[str]) -> str:
    if rank >= 0:
        return f"rank {rank}"
    return f"all processes of node {nodes[-1 - rank]}" if 1 < len(nodes) > -1 - rank else "all processes"


def _trace(rank: int, curve: Curve, x: Sequence[float], unit: Unit, nodes: Sequence[str] = ()) -> go.Scatter:
    name = theme.plain(_name(rank, nodes))
    is_evenly_spaced = len(x) <= 60 and all(after >= before for before, after in pairwise(x))
    # The only node is grey; each of several nodes has a colour of its own.
    colour = theme.rank_colour(-1 - rank if rank < 0 and len(nodes) > 1 else rank)
    return go.Scatter(
        x=x,
        y=rounded(curve.values, unit.factor),
        name=name,
        # A single point needs a marker to be visible.
        mode="lines+markers" if (is_evenly_spaced and rank >= 0) or len(x) == 1 else "lines",
        line={"color": colour, "width": 1.5, "dash": "dot" if rank < 0 else theme.rank_dash(rank)},
        marker={"size": 5, "symbol": theme.SYMBOLS[rank % len(theme.SYMBOLS)]},
        hovertemplate=f"%{{y}} {unit.name}<extra>{name}</extra>",
    )


def _curves_table(curves: Mapping[int, Curve], column: str) -> Table:
    rows = [
        [rank, int(step), float(time), float(value)]
        for rank, curve in curves.items()
        for step, time, value in zip(curve.steps, curve.times, curve.values, strict=True)
    ]
    return Table(["rank", "step", "unix_time_s", column], rows)
