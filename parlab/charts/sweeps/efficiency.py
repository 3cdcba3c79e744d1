"""Scaling efficiency: throughput per GPU relative to the smallest run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.axes import (
    GPUS,
    alike,
    axis_title,
    emulation_mark,
    layout_note,
    like_with_like,
    names_of,
    plan,
    series_name,
    unknown_gpus,
    x_axis,
)
from parlab.charts.format import significant
from parlab.charts.labels import label_ends
from parlab.charts.measures import AUTO, Available, Options
from parlab.charts.points import RunPoint, counted_devices, device, devices, in_order, with_kinds
from parlab.charts.repeats import bars_over, count_of, noise_of, percent, values_of
from parlab.charts.theme import Drawing

TITLE = "Scaling efficiency"


def missing(available: Available) -> str:
    """Say why there is no efficiency to draw; empty where there is."""
    points = available.points
    if not points:
        return "no run has finished"
    measured = _measured(points)
    if not measured and any(_rate(point) for point in points):
        return f"the number of {devices(points)} is unknown"
    if len({point.gpus for point in measured}) < 2:
        return f"needs runs on different numbers of {devices(points)}"
    return "" if _lines(measured, AUTO)[1] else f"no two runs differ only in their number of {devices(points)}"


def figure(points: Sequence[RunPoint], options: Options = AUTO) -> Drawing:
    """Draw throughput per GPU (y), in per cent of the smallest run of the same line, against the number of GPUs (x)."""
    if reason := missing(Available(points)):
        return theme.missing(TITLE, reason)
    axes, lines = _lines(_measured(points), options)
    if not lines:
        return theme.missing(TITLE, f"with these lines, no two runs differ only in their number of {devices(points)}")
    counts = in_order(point.gpus for line in lines.values() for point in line)
    drawing = go.Figure(
        layout=theme.layout(
            title=TITLE,
            subtitle=f"throughput per {device(points)}, the smallest run of each line is 100 %",
            x=axis_title(GPUS, points),
            y=f"Efficiency (% {_base(lines, points)})",
            xaxis=x_axis(counts, GPUS, options),
            yaxis={"rangemode": "tozero"},
        )
    )
    styles = theme.styles(list(lines))
    for names, line in lines.items():
        drawing.add_trace(_line(line, theme.plain(series_name(names, axes) + emulation_mark(line)), styles[names]))
    drawing.add_hline(y=100, line={"color": theme.GREY, "dash": "dash", "width": 1})
    drawing.update_layout(showlegend=len(lines) > 1)
    label_ends(drawing)
    rows = [
        [point.number, point.gpus, point.samples_per_s, of_line(line, point), point.outcome, point.tokens_per_s]
        for line in lines.values()
        for point in line
    ]
    caption = f"{_efficiency_caption(lines)}{layout_note(_measured(points))}{unknown_gpus(points)}"
    header = ["run", "gpus", "samples_per_s", "efficiency", "state", "tokens_per_s"]
    return Drawing(drawing, caption, with_kinds(header, rows, [point for line in lines.values() for point in line]))


def _base(lines: dict[tuple[str, ...], list[RunPoint]], points: Sequence[RunPoint]) -> str:
    """Return what is 100 %: `of 8 GPUs`, with its layout where runs of another one are left out."""
    smallest = {_gpus(line[0]) for line in lines.values()}
    base = f"of {counted_devices(points, smallest.pop())}" if len(smallest) == 1 else "of the smallest"
    compared, others = like_with_like(_measured(points))
    layout = compared[0].layout if others else None
    return f"{base}, TP {layout[0]}, PP {layout[1]}" if layout else base


def _measured(points: Sequence[RunPoint]) -> list[RunPoint]:
    """Return the points with a rate in the same unit: samples, or tokens where no run states samples."""
    counted = [point for point in points if point.gpus and point.state != "oom"]
    return [point for point in counted if point.samples_per_s] or [point for point in counted if point.tokens_per_s]


def _lines(
    measured: Sequence[RunPoint], options: Options
) -> tuple[Sequence[str], dict[tuple[str, ...], list[RunPoint]]]:
    """Return the axes that tell lines apart, and the lines of at least two runs, sorted by number of GPUs."""
    members, _ = like_with_like(alike(measured, measured)[0])
    axes = plan(members, options._replace(x=GPUS)).lines
    lines: dict[tuple[str, ...], list[RunPoint]] = {}
    for point in members:
        lines.setdefault(names_of(point, axes), []).append(point)
    return axes, {names: sorted(line, key=_gpus) for names, line in lines.items() if len(line) > 1}


def longest_line(points: Sequence[RunPoint]) -> list[RunPoint]:
    """Return the line of the figure that ends on the most devices, of several the fastest; empty without a figure."""
    if missing(Available(points)):
        return []
    lines = _lines(_measured(points), AUTO)[1]
    return max(lines.values(), key=lambda line: (_gpus(line[-1]), _rate(line[-1]) or 0.0))


def of_line(line: Sequence[RunPoint], point: RunPoint) -> float:
    """Return the throughput per GPU of a point, relative to the fastest of the smallest runs of its line."""
    smallest = min(map(_gpus, line))
    base = max((_rate(member) or 0.0) / smallest for member in line if member.gpus == smallest)
    return (_rate(point) or 0.0) / _gpus(point) / base


def _gpus(point: RunPoint) -> int:
    """Return the number of GPUs of a point of a line, which is known."""
    return point.gpus or 1


def _line(line: Sequence[RunPoint], name: str, style: theme.Style) -> go.Scatter:
    shares = [100 * of_line(line, point) for point in line]
    return go.Scatter(
        x=[point.gpus for point in line],
        y=shares,
        name=name,
        mode="lines+markers",
        line={"color": style.colour, "dash": style.dash, "width": 2},
        marker={"color": style.colour, "symbol": style.symbol, "size": 9},
        error_y=_bars(line, shares),
        hovertext=[
            point.hover(
                ("efficiency", share, "%"), ("samples/s", point.samples_per_s, ""), ("tokens/s", point.tokens_per_s, "")
            )
            for point, share in zip(line, shares, strict=True)
        ],
        hoverinfo="text",
    )


def _bars(line: Sequence[RunPoint], shares: Sequence[float]) -> dict[str, Any] | None:
    """Return error bars over the range of the repeats; None without repeats."""
    if not any(point.repeats for point in line):
        return None
    ranges = [
        [share * value / (_rate(point) or 1.0) for value in values_of(point, _rate)]
        for point, share in zip(line, shares, strict=True)
    ]
    return bars_over(zip(shares, ranges, strict=True))


def _efficiency_caption(lines: dict[tuple[str, ...], list[RunPoint]]) -> str:
    """Name the best point and the largest ones: on few devices the efficiency is usually higher than on many."""
    shares = [
        (of_line(line, point), point) for line in lines.values() for point in line if _gpus(point) > _gpus(line[0])
    ]
    points = [point for line in lines.values() for point in line]
    if not shares:
        return f"No line has runs on more {devices(points)} than its first."
    top, best = max(shares, key=lambda share: share[0])
    most = max(_gpus(point) for _, point in shares)
    ends = [(of_line(line, line[-1]), line) for line in lines.values() if _gpus(line[-1]) == most]
    share, line = max(ends, key=lambda end: end[0])
    caption = f"Efficiency: {_on(top, best, points)}"
    if best.number != line[-1].number:
        caption += f" at best, {_on(share, line[-1], points)}"
    has_repeats = any(point.repeats for point in points)
    return f"{caption}.{' Bars span the repeats.' if has_repeats else ''}{_noise_note(ends)}"


def _on(share: float, point: RunPoint, points: Sequence[RunPoint]) -> str:
    return f"{significant(100 * share)} % on {counted_devices(points, _gpus(point))} ({point.runs})"


def _noise_note(ends: Sequence[tuple[float, list[RunPoint]]]) -> str:
    """State whether the best of the lines that end on equally many devices leads by more than the noise of repeats."""
    noisy = noise_of([point for _, line in ends for point in line], _rate)
    if noisy is None or len(ends) < 2:
        return ""
    (best, first), (next_best, second) = sorted(ends, key=lambda end: -end[0])[:2]
    # Each efficiency is a ratio of two means; the variances of all four add up.
    limit = noisy.limit(_pair(first), _pair(second))
    if best / next_best - 1 > limit:
        return f" The lead of {first[-1].runs} is larger than the noise of the repeats ({percent(limit)})."
    return f" The lead of {first[-1].runs} over {second[-1].runs} is smaller than the noise of the repeats."


def _pair(line: Sequence[RunPoint]) -> float:
    """Return the number of repeats whose mean varies as much as the ratio of the last to the first point of a line."""
    return 1 / (1 / count_of(line[0]) + 1 / count_of(line[-1]))


def _rate(point: RunPoint) -> float | None:
    return point.samples_per_s or point.tokens_per_s
