"""How much of their devices an experiment's runs use: MFU and HFU, and the share of time in which a GPU was busy."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from . import theme
from .format import SPACE, significant
from .points import RunPoint, fastest
from .theme import Drawing, Table

# Field of a point -> name of its bars, colour; the order of the legend.
_SHARES = {
    "mfu_pct": ("MFU: FLOPs that the model needs", theme.BLUE),
    "hfu_pct": ("HFU: with those computed again", theme.SKY),
    "gpu_util_pct": ("GPU utilisation: a kernel runs", theme.GREEN),
}


def figure(points: Sequence[RunPoint]) -> Drawing:
    """Draw the shares of each run (x) beside each other, in per cent (y); those that no run has are left out."""
    measured = [point for point in points if any(_share(point, name) is not None for name in _SHARES)]
    if not measured:
        return theme.nothing(
            "No utilisation: nothing says what the devices can do. It comes with runs whose GPU is in the catalogue,"
            " and on a CPU once the node has measured its matrix products."
        )
    everything = measured
    measured, left_out = fastest(measured)
    drawing = go.Figure(
        layout=theme.layout(
            title="Utilisation",
            subtitle="share of the devices' peak, and of the time",
            x="Run",
            y="Utilisation (%)",
            barmode="group",
            bargap=0.25,
            bargroupgap=0.05,
            xaxis=theme.runs_axis([point.short_label for point in measured]),
            yaxis={"rangemode": "tozero"},
        )
    )
    # Without recomputation HFU says what MFU says.
    is_same = all(point.hfu_pct in (None, point.mfu_pct) for point in everything)
    shown = [name for name in _SHARES if not (name == "hfu_pct" and is_same)]
    for name in shown:
        values = [_share(point, name) for point in measured]
        if any(value is not None for value in values):
            title, colour = _SHARES[name]
            drawing.add_trace(
                go.Bar(
                    x=[point.short_label for point in measured],
                    y=values,
                    name=title,
                    marker={"color": colour},
                    hovertext=[_hover(point, title, value) for point, value in zip(measured, values, strict=True)],
                    hoverinfo="text",
                    textposition="none",
                )
            )
    drawing.update_layout(showlegend=True)
    return Drawing(drawing, _caption(everything) + left_out, _table(everything))


def _share(point: RunPoint, name: str) -> float | None:
    value: float | None = getattr(point, name)
    return value


def _hover(point: RunPoint, title: str, value: float | None) -> str:
    return point.hover((title.partition(":")[0], value, "%"), ("model FLOPs per device", point.flops_per_gpu, "FLOP/s"))


def _caption(measured: Sequence[RunPoint]) -> str:
    rated = [point for point in measured if point.mfu_pct is not None]
    if not rated:
        return "Nobody knows the peak of these devices, so there is no MFU."
    best = max(rated, key=lambda point: point.mfu_pct or 0.0)
    peaks = list(dict.fromkeys(point.peak for point in rated if point.peak))
    said = f"MFU is {significant(best.mfu_pct)}{SPACE}% at most, with {best.label} (run {best.number})"
    if len(peaks) == 1:
        return f"{said}, of {peaks[0]}."
    return f"{said}; the runs divide by {len(peaks)} different peaks, which their pages name." if peaks else f"{said}."


def _table(measured: Sequence[RunPoint]) -> Table:
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
    return Table(header, rows)
