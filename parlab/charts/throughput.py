"""Throughput of an experiment's runs against micro batch size, GPUs, or whatever else was swept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from . import theme
from .format import DASH, field_title, field_value, quantity
from .points import EMULATED, RunPoint, in_order, is_number, varied
from .theme import Drawing, Table

GPUS = "GPUs"
RUN = "Run"
SIZE_AXES = (
    "parallel.data_parallel_size",
    "parallel.tensor_parallel_size",
    "parallel.pipeline_parallel_size",
    "cluster.nodes",
    "cluster.gpus_per_node",
)
MAX_LINES = 24
PREFERRED = "train.micro_batch_size"


class Plan(NamedTuple):
    """Which axis runs along x, and which axes tell the lines apart."""

    x: str
    lines: list[str]


def plan(points: Sequence[RunPoint]) -> Plan:
    """Choose x: GPUs where they vary, else micro batch size, else the first axis of numbers, else the first."""
    axes = varied(points)
    if len({point.gpus for point in points}) > 1:
        # An imported sweep may call the number of GPUs what it likes.
        lines = [axis for axis in axes if axis not in SIZE_AXES and not _is_gpus(points, axis)]
        # Two layouts of as many GPUs are no line: then the sizes tell the points apart.
        seen = [(point.gpus, _names(point, lines)) for point in points]
        return Plan(GPUS, lines if len(set(seen)) == len(seen) else axes)
    numeric = [axis for axis in axes if all(is_number(point.values.get(axis)) for point in points)]
    x = PREFERRED if PREFERRED in numeric else next(iter(numeric or axes), RUN)
    return Plan(x, [axis for axis in axes if axis != x])


def _is_gpus(points: Sequence[RunPoint], axis: str) -> bool:
    return all(point.values.get(axis) == point.gpus for point in points)


def _alike(points: Sequence[RunPoint], measured: Sequence[RunPoint]) -> tuple[list[RunPoint], list[RunPoint]]:
    """Part the points into those with the axes that most measured ones have, and the others."""
    kinds = [frozenset(point.values) for point in measured]
    most = max(kinds, key=kinds.count)
    return (
        [point for point in points if frozenset(point.values) == most],
        [point for point in points if frozenset(point.values) != most],
    )


def _counts(point: RunPoint) -> bool:
    """Whether a run has a throughput to draw; what it reached before it ran out of memory is none."""
    return point.samples_per_s is not None and point.state != "oom"


def _names(point: RunPoint, lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(field_value(point.values.get(axis)) for axis in lines)


def _x_of(point: RunPoint, axis: str) -> Any:
    if axis == GPUS:
        return point.gpus
    return point.number if axis == RUN else point.values.get(axis)


def figure(points: Sequence[RunPoint]) -> Drawing:
    """Draw samples/s (y) against the main axis (x), one line per combination of the others.

    Error bars are the 10th to 90th percentile of step time turned into samples/s. Runs that were out of
    memory are crosses at the foot. Where GPUs vary, both axes are logarithmic and a dashed line shows
    ideal scaling from the fastest of the smallest runs.
    """
    measured = [point for point in points if _counts(point)]
    if not measured:
        if any(point.state == "finished" for point in points):
            return theme.nothing("No throughput: these runs came without samples per second.")
        return theme.nothing("No throughput yet: no run has finished.")
    points, others = _alike(points, measured)
    measured = [point for point in points if _counts(point)]
    chosen = plan(points)
    spread = any(point.step_time_s and point.step_time_s.p10 for point in measured)
    x_values = in_order(_x_of(point, chosen.x) for point in points)
    drawing = go.Figure(
        layout=theme.layout(
            title="Throughput",
            subtitle="median of the measured steps, bars from p10 to p90" if spread else "one point per run",
            x=theme.plain(field_title(chosen.x)) if chosen.x not in (GPUS, RUN) else chosen.x,
            y="Throughput (samples/s)",
            xaxis=_x_axis(x_values, chosen.x),
            yaxis={"tickformat": "~s", **({"type": "log"} if chosen.x == GPUS else {"rangemode": "tozero"})},
        )
    )
    lines, left_out = _lines(measured, chosen)
    styles = theme.styles(list(lines))
    for names, members in lines.items():
        members.sort(key=lambda point: x_values.index(_x_of(point, chosen.x)))
        drawing.add_trace(_line(members, names, chosen, styles[names]))
    if chosen.x == GPUS:
        _add_ideal(drawing, measured)
    _add_out_of_memory(drawing, points, measured, chosen)
    drawing.update_layout(showlegend=len(drawing.data) > 1)
    return Drawing(drawing, _caption(points, measured, chosen, others) + left_out, _table([*points, *others]))


def _lines(measured: Sequence[RunPoint], chosen: Plan) -> tuple[dict[tuple[str, ...], list[RunPoint]], str]:
    """Sort the points into lines; of very many only those that reach the highest throughput, and say so."""
    lines: dict[tuple[str, ...], list[RunPoint]] = {}
    for point in measured:
        lines.setdefault(_names(point, chosen.lines), []).append(point)
    if len(lines) <= MAX_LINES:
        return lines, ""
    best = sorted(lines, key=lambda names: -max(point.samples_per_s or 0.0 for point in lines[names]))[:MAX_LINES]
    words = f" The {MAX_LINES} fastest of {len(lines)} lines are drawn; the numbers hold all."
    return {names: lines[names] for names in lines if names in best}, words


def _x_axis(values: Sequence[Any], axis: str) -> dict[str, Any]:
    if not all(is_number(value) for value in values) or axis == RUN:
        return {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [theme.plain(field_value(v)) for v in values],
        }
    ticks = {"tickmode": "array", "tickvals": list(values), "ticktext": [field_value(value) for value in values]}
    doubling = min(values) > 0 and max(values) >= 4 * min(values)
    return {"type": "log" if axis == GPUS or doubling else "linear", **ticks}


def _shown_x(point: RunPoint, chosen: Plan) -> Any:
    value = _x_of(point, chosen.x)
    return value if is_number(value) and chosen.x != RUN else theme.plain(field_value(value))


def _line(members: list[RunPoint], names: tuple[str, ...], chosen: Plan, style: theme.Style) -> go.Scatter:
    shown = [point.samples_per_s for point in members]
    bars = [_error_bar(point) for point in members]
    drawn_as_line = all(is_number(_x_of(point, chosen.x)) for point in members) and chosen.x != RUN and len(members) > 1
    return go.Scatter(
        x=[_shown_x(point, chosen) for point in members],
        y=shown,
        name=theme.plain(_series_name(names, chosen.lines) + _mark(members)),
        mode="lines+markers" if drawn_as_line else "markers",
        line={"color": style.colour, "dash": style.dash, "width": 2},
        marker={"color": style.colour, "symbol": style.symbol, "size": 9},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [up for up, _ in bars],
            "arrayminus": [down for _, down in bars],
            "thickness": 1,
            "width": 3,
        },
        hovertext=[
            point.hover(
                ("samples/s", point.samples_per_s, ""),
                ("tokens/s", point.tokens_per_s, ""),
                ("step time", point.step_time_s.median if point.step_time_s else None, "s"),
            )
            for point in members
        ],
        hoverinfo="text",
    )


def _series_name(names: tuple[str, ...], lines: Sequence[str]) -> str:
    named = [
        f"{field_title(axis).lower()} {name}" if name.isdigit() else name
        for name, axis in zip(names, lines, strict=True)
    ]
    return ", ".join(named) or "measured"


def _mark(members: Sequence[RunPoint]) -> str:
    """Say of a line that its points are not what a machine computed."""
    emulated = sum(point.is_emulated for point in members)
    return "" if not emulated else f" ({EMULATED})" if emulated == len(members) else f" (partly {EMULATED})"


def _error_bar(point: RunPoint) -> tuple[float, float]:
    """How far p10 and p90 of step time lie above and below the median, in samples/s."""
    spread, value = point.step_time_s, point.samples_per_s
    if spread is None or not value or not spread.p10 or not spread.p90:
        return 0.0, 0.0
    return max(0.0, value * (spread.median / spread.p10 - 1)), max(0.0, value * (1 - spread.median / spread.p90))


def _add_ideal(drawing: go.Figure, measured: Sequence[RunPoint]) -> None:
    smallest = min(point.gpus for point in measured)
    start = max(point.samples_per_s or 0.0 for point in measured if point.gpus == smallest)
    counts = sorted({point.gpus for point in measured})
    drawing.add_trace(
        go.Scatter(
            x=counts,
            y=[start * count / smallest for count in counts],
            name=f"ideal from {smallest}",
            mode="lines",
            line={"color": theme.GREY, "dash": "dash", "width": 1},
            hoverinfo="skip",
        )
    )


def _add_out_of_memory(
    drawing: go.Figure, points: Sequence[RunPoint], measured: Sequence[RunPoint], chosen: Plan
) -> None:
    too_big = [point for point in points if point.state == "oom"]
    if not too_big:
        return
    lowest = min(point.samples_per_s or 0.0 for point in measured)
    drawing.add_trace(
        go.Scatter(
            x=[_shown_x(point, chosen) for point in too_big],
            y=[lowest / 2 if chosen.x == GPUS else 0.0] * len(too_big),
            name="OOM",
            mode="markers+text",
            text=["OOM"] * len(too_big),
            textposition="top center",
            marker={
                "color": theme.OOM_COLOUR,
                "symbol": "x-thin",
                "size": 9,
                "line": {"width": 2, "color": theme.OOM_COLOUR},
            },
            cliponaxis=False,
            hovertext=[point.hover() for point in too_big],
            hoverinfo="text",
        )
    )


def _caption(points: Sequence[RunPoint], measured: Sequence[RunPoint], chosen: Plan, others: Sequence[RunPoint]) -> str:
    best = max(measured, key=lambda point: point.samples_per_s or 0.0)
    said = f"{quantity(best.samples_per_s, 'samples/s')} at most, with {best.label} (run {best.number})."
    too_big = sum(point.state == "oom" for point in points)
    if too_big:
        said += f" {too_big} of {len(points)} ran out of memory."
    if others:
        runs = ", ".join(f"run {point.number} ({point.label}: {point.state})" for point in others[:5])
        said += f" Not drawn, since other things were set: {runs}{' and more' if len(others) > 5 else ''}."
    if chosen.x == GPUS:
        said += f" {_scaling(measured)}"
    return said


def _scaling(measured: Sequence[RunPoint]) -> str:
    """Say whether the sweep kept the global batch (strong), the batch per GPU (weak) or neither."""
    batches = {point.global_batch_size for point in measured}
    if None in batches:
        return f"Batch sizes are not known {DASH} ideal means as many times faster as GPUs."
    if len(batches) == 1:
        return f"Strong scaling: {batches.pop()} samples per step in all."
    shares = {(point.global_batch_size or 0) / point.gpus for point in measured}
    if len(shares) == 1:
        return f"Weak scaling: {shares.pop():g} samples per step and GPU."
    return "Neither strong nor weak scaling: the batch differs in all and per GPU."


def _table(points: Sequence[RunPoint]) -> Table:
    axes = list(dict.fromkeys(axis for point in points for axis in point.values))
    header = [
        "run",
        *axes,
        "state",
        "gpus",
        "step_time_s",
        "step_time_p10_s",
        "step_time_p90_s",
        "samples_per_s",
        "tokens_per_s",
    ]
    rows: list[list[Any]] = []
    for point in points:
        spread = point.step_time_s
        times = list(spread) if spread else [None, None, None]
        values = [point.values.get(axis) for axis in axes]
        rows.append([point.number, *values, point.state, point.gpus, *times, point.samples_per_s, point.tokens_per_s])
    return Table(header, rows)
