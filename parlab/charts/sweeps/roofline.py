"""The roofline of an experiment: FLOP/s per device below the attainable maximum."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.axes import emulation_mark, log_ticks, names_of, plan, series_name
from parlab.charts.format import quantity, significant
from parlab.charts.labels import label_ends, mark_best
from parlab.charts.measures import AUTO, Available, Options
from parlab.charts.points import Roof, RunPoint, with_kinds
from parlab.charts.repeats import error_bars, lead_note
from parlab.charts.theme import Drawing

TITLE = "Roofline"


def missing(available: Available) -> str:
    """Say why there is no roofline to draw; empty where there is."""
    points = available.points
    if not points:
        return "no run has finished"
    return "" if _measured(points) else "needs finished runs with known FLOPs, on a device with known peak FLOP/s"


def _measured(points: Sequence[RunPoint]) -> list[RunPoint]:
    return [point for point in points if point.roof and point.flops_per_gpu and point.state == "finished"]


def figure(points: Sequence[RunPoint], options: Options = AUTO) -> Drawing:
    """Draw FLOP/s per device (y) against FLOPs per byte of weights read (x), both logarithmic, under the roofs.

    A roof is min(peak, bandwidth x intensity) (Williams, Waterman and Patterson 2009): left of its ridge point, memory
    bandwidth is the limit. Traffic of activations is not counted, so a run can lie far below its roof.
    """
    if reason := missing(Available(points)):
        return theme.missing(TITLE, reason)
    measured = _measured(points)
    chosen = plan(measured, options)
    lines: dict[tuple[str, ...], list[RunPoint]] = {}
    for point in measured:
        lines.setdefault(names_of(point, chosen.lines), []).append(point)
    reach = [point.roof.intensity for point in measured if point.roof]
    drawing = go.Figure(
        layout=theme.layout(
            title=TITLE,
            subtitle="one point per run; the dashed lines are the limits of the devices",
            x="FLOPs per byte of weights read",
            y="FLOP/s per device",
            xaxis={"type": "log", "tickformat": "~s", **log_ticks(reach)},
            yaxis={"type": "log", "tickformat": "~s", **log_ticks(_heights(measured))},
        )
    )
    for roof in dict.fromkeys(point.roof._replace(intensity=0.0) for point in measured if point.roof):
        drawing.add_trace(_roof_line(roof, min(reach), max(reach)))
    styles = theme.styles(list(lines))
    for names, members in lines.items():
        drawing.add_trace(
            _points(members, theme.plain(series_name(names, chosen.lines) + emulation_mark(members)), styles[names])
        )
    drawing.update_layout(showlegend=True)
    label_ends(drawing)
    best = max(measured, key=lambda point: point.mfu_pct or 0.0)
    if len(measured) > 1 and best.roof and best.flops_per_gpu:
        mark_best(drawing, best.roof.intensity, best.flops_per_gpu, f"best {quantity(best.flops_per_gpu, 'FLOP/s')}")
    rows = [
        [p.number, p.roof.intensity, p.flops_per_gpu, p.roof.peak_flops, p.roof.memory_bandwidth, p.mfu_pct]
        for p in measured
        if p.roof
    ]
    header = ["run", "flops_per_weight_byte", "flops_per_device", "peak_flops", "memory_bytes_per_s", "mfu_pct"]
    return Drawing(drawing, _roofline_caption(measured), with_kinds(header, rows, [p for p in measured if p.roof]))


def _heights(measured: Sequence[RunPoint]) -> list[float]:
    return [height for p in measured if p.roof and p.flops_per_gpu for height in (p.flops_per_gpu, p.roof.peak_flops)]


def _roof_line(roof: Roof, low: float, high: float) -> go.Scatter:
    ridge = roof.peak_flops / roof.memory_bandwidth if roof.memory_bandwidth else None
    ends = sorted({low / 2, high * 2, *([ridge] if ridge else [])})
    slope = roof.memory_bandwidth
    return go.Scatter(
        x=ends,
        y=[min(roof.peak_flops, slope * x) if slope else roof.peak_flops for x in ends],
        name=f"peak {quantity(roof.peak_flops, 'FLOP/s')}",
        mode="lines",
        line={"color": theme.GREY, "dash": "dash", "width": 1},
        hoverinfo="skip",
    )


def _points(members: Sequence[RunPoint], name: str, style: theme.Style) -> go.Scatter:
    return go.Scatter(
        x=[point.roof.intensity for point in members if point.roof],
        y=[point.flops_per_gpu for point in members],
        name=name,
        mode="markers",
        marker={"color": style.colour, "symbol": style.symbol, "size": 9},
        error_y=error_bars(members, lambda point: point.flops_per_gpu),
        hovertext=[
            point.hover(("FLOP/s per device", point.flops_per_gpu, ""), ("MFU", point.mfu_pct, "%"))
            for point in members
        ],
        hoverinfo="text",
    )


def _roofline_caption(measured: Sequence[RunPoint]) -> str:
    best = max(measured, key=lambda point: point.mfu_pct or 0.0)
    caption = f"Best: {significant(best.mfu_pct, best.digits(best.mfu_pct))} % of peak FLOP/s, {best.full_label}."
    caption += lead_note(measured, lambda point: point.mfu_pct, least_is_best=False)
    bound = [
        point
        for point in measured
        if point.roof
        and point.roof.memory_bandwidth
        and point.roof.intensity * point.roof.memory_bandwidth < point.roof.peak_flops
    ]
    if bound:
        return caption + f" {len(bound)} of {len(measured)} runs are limited by memory bandwidth, not by compute."
    return caption
