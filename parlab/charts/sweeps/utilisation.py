"""Device utilisation of an experiment's runs: MFU, HFU, and the share of time in which a GPU was busy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.format import SPACE, significant
from parlab.charts.measures import Available
from parlab.charts.points import RunPoint, fastest, with_kinds
from parlab.charts.repeats import error_bars, lead_note
from parlab.charts.theme import Drawing, Table

# Field of a point -> name of its bars, colour; the order of the legend.
_SHARES = {
    "mfu_pct": ("MFU: FLOPs of the model", theme.BLUE),
    "hfu_pct": ("HFU: with recomputation", theme.SKY),
    "gpu_util_pct": ("GPU utilisation: a kernel is running", theme.GREEN),
}


TITLE = "Utilisation"
_SUBTITLE = "share of peak FLOP/s, and of the time in which a kernel ran"
_OF_REPEATS = "; mean of the repeats, bars over their range"


def missing(available: Available) -> str:
    """Say why there is no utilisation to draw; empty where there is."""
    points = available.points
    if _measured(points):
        return ""
    if not points:
        return "no run has finished"
    return (
        "the peak FLOP/s of the devices is unknown; it is available for GPUs in the catalogue, and for CPUs once their"
        " node has timed matrix products"
    )


def _measured(points: Sequence[RunPoint]) -> list[RunPoint]:
    return [point for point in points if any(_share(point, name) is not None for name in _SHARES)]


def figure(points: Sequence[RunPoint]) -> Drawing:
    """Draw MFU, HFU and GPU utilisation (y, per cent) of each run (x) as grouped bars; absent shares are omitted."""
    if reason := missing(Available(points)):
        return theme.missing(TITLE, reason)
    everything = _measured(points)
    measured, left_out = fastest(everything)
    drawing = go.Figure(
        layout=theme.layout(
            title=TITLE,
            subtitle=_SUBTITLE + _OF_REPEATS * any(point.repeats for point in measured),
            x="Run",
            y="Utilisation (%)",
            barmode="group",
            bargap=0.25,
            bargroupgap=0.05,
            xaxis=theme.runs_axis([point.short_label for point in measured]),
            yaxis={"rangemode": "tozero"},
        )
    )
    # Without recomputation, HFU equals MFU.
    is_same = all(point.hfu_pct in (None, point.mfu_pct) for point in everything)
    shares = [name for name in _SHARES if not (name == "hfu_pct" and is_same)]
    for name in shares:
        values = [_share(point, name) for point in measured]
        if any(value is not None for value in values):
            title, colour = _SHARES[name]
            drawing.add_trace(
                go.Bar(
                    x=[point.short_label for point in measured],
                    y=values,
                    name=title,
                    marker={"color": colour},
                    error_y=error_bars(measured, partial(_share, name=name)),
                    hovertext=[_hover(point, title, value) for point, value in zip(measured, values, strict=True)],
                    hoverinfo="text",
                    textposition="none",
                )
            )
    drawing.update_layout(showlegend=True)
    return Drawing(drawing, _utilisation_caption(everything) + left_out, _utilisation_table(everything))


def _share(point: RunPoint, name: str) -> float | None:
    value: float | None = getattr(point, name)
    return value


def _hover(point: RunPoint, title: str, value: float | None) -> str:
    return point.hover((title.partition(":")[0], value, "%"), ("model FLOPs per device", point.flops_per_gpu, "FLOP/s"))


def _utilisation_caption(measured: Sequence[RunPoint]) -> str:
    rated = [point for point in measured if point.mfu_pct is not None]
    if not rated:
        return "Peak FLOP/s of these devices is unknown, so MFU is not available."
    best = max(rated, key=lambda point: point.mfu_pct or 0.0)
    peaks = list(dict.fromkeys(point.peak for point in rated if point.peak))
    caption = f"Best MFU: {significant(best.mfu_pct, best.digits(best.mfu_pct))}{SPACE}%, {best.full_label}"
    lead = lead_note(rated, partial(_share, name="mfu_pct"), least_is_best=False)
    if len(peaks) == 1:
        return f"{caption}, of {peaks[0]}.{lead}"
    if peaks:
        return f"{caption}.{lead} The runs have {len(peaks)} different peaks; the page of each run names its own."
    return f"{caption}.{lead}"


def _utilisation_table(measured: Sequence[RunPoint]) -> Table:
    axes = list(dict.fromkeys(axis for point in measured for axis in point.values))
    header = ["run", *axes, "state", *_SHARES, "flops_per_gpu", "peak"]
    rows = [
        [
            point.number,
            *(point.values.get(axis) for axis in axes),
            point.outcome,
            *(_share(point, name) for name in _SHARES),
            point.flops_per_gpu,
            point.peak,
        ]
        for point in measured
    ]
    return with_kinds(header, rows, measured)
