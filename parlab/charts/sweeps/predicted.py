"""Predictions of the planner against measurements, and training days against nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import plotly.graph_objects as go

from parlab.charts import theme
from parlab.charts.axes import log_ticks
from parlab.charts.fields import value_label
from parlab.charts.format import exact_quantity, quantity, significant
from parlab.charts.measures import Available
from parlab.charts.repeats import bars_over
from parlab.charts.theme import Drawing, Table


class PredictedPoint(NamedTuple):
    """A run with its measured and its predicted iteration time."""

    number: int
    values: Mapping[str, Any]
    measured_s: float | None
    predicted_s: float
    plain_s: float
    """Prediction without calibration on this cluster."""
    measured_bytes: float | None
    predicted_bytes: float
    is_oom: bool
    fits: bool
    basis: str
    repeats_s: tuple[float, ...] = ()
    """Measured times of the repeats of which `measured_s` is the mean."""
    kinds: tuple[str, str] = ("", "")
    """How time and memory of a file came about: printed, derived or others."""

    @property
    def label(self) -> str:
        """Return the axis values as text."""
        named = [value_label(axis, value) for axis, value in self.values.items()]
        return ", ".join(named) or f"run {self.number}"


TITLE = "Predicted against measured"
_KINDS = ("kind of measured_s", "kind of measured_bytes")
UNTIMED = "no run has a step time or FLOP/s"


def missing(available: Available) -> str:
    """Say why there is nothing to compare; empty where predictions can be tried."""
    if not available.points:
        return "no run has finished"
    return "" if any(point.step_time_s or point.flops_per_gpu for point in available.points) else UNTIMED


def figure(points: Sequence[PredictedPoint], left_out: Sequence[str] = ()) -> Drawing:
    """Draw predicted (y) against measured (x) seconds of an iteration, both axes log; on the line both agree.

    `left_out` are the reasons why runs have no prediction ("3 runs: ...").
    """
    timed = [point for point in points if point.measured_s]
    if not timed:
        return theme.missing(TITLE, "; ".join(left_out) or UNTIMED)
    ends = [value for point in timed for value in (point.measured_s or 0.0, point.predicted_s, point.plain_s)]
    drawing = go.Figure(
        layout=theme.layout(
            title=TITLE,
            subtitle="on the dashed line both agree",
            x="Measured time of an iteration (s)",
            y="Predicted time of an iteration (s)",
            xaxis={"type": "log", "tickformat": "~g", **log_ticks(ends)},
            yaxis={"type": "log", "tickformat": "~g", **log_ticks(ends)},
        )
    )
    calibrated = any(point.predicted_s != point.plain_s for point in timed)
    if calibrated:
        drawing.add_trace(_marks(timed, "calibrated on the other half of the runs", theme.GREEN, "circle", plain=False))
    drawing.add_trace(_marks(timed, "not calibrated", theme.PURPLE, "diamond-open", plain=True))
    drawing.add_trace(theme.agreement(ends, showlegend=False))
    caption = " ".join(filter(None, [_error_caption(timed, calibrated), _left_out(left_out)]))
    return Drawing(drawing, caption, _predictions_table(points))


def _left_out(reasons: Sequence[str]) -> str:
    return f"Not predicted: {'; '.join(reasons)}." if reasons else ""


def _marks(points: Sequence[PredictedPoint], name: str, colour: str, symbol: str, *, plain: bool) -> go.Scatter:
    predicted = [point.plain_s if plain else point.predicted_s for point in points]
    return go.Scatter(
        x=[point.measured_s for point in points],
        y=predicted,
        mode="markers",
        name=name,
        marker={"color": colour, "symbol": symbol, "size": 8},
        error_x=_range(points),
        hovertemplate="%{text}<extra></extra>",
        text=[
            theme.plain(
                f"run {point.number}: {point.label}, measured {exact_quantity(point.measured_s, 's')}{_of(point)},"
                f" predicted {exact_quantity(value, 's')}"
            )
            for point, value in zip(points, predicted, strict=True)
        ],
    )


def _of(point: PredictedPoint) -> str:
    return f" (mean of {len(point.repeats_s)} repeats)" if len(point.repeats_s) > 1 else ""


def _range(points: Sequence[PredictedPoint]) -> dict[str, Any] | None:
    """Return error bars over the measured times of repeats; None without repeats."""
    if not any(len(point.repeats_s) > 1 for point in points):
        return None
    return bars_over((point.measured_s, point.repeats_s) for point in points)


def _error(predicted: float, measured: float | None) -> float:
    return abs(predicted / (measured or predicted) - 1)


def _off(error: float) -> str:
    return f"{significant(100 * error)} %" if error < 2 else f"a factor of {significant(1 + error)}"


def _error_caption(points: Sequence[PredictedPoint], calibrated: bool) -> str:
    plain = median(_error(point.plain_s, point.measured_s) for point in points)
    whom = "The run is" if len(points) == 1 else f"Half of the {len(points)} runs are"
    caption = f"{whom} predicted within {_off(plain)} without calibration"
    if calibrated:
        better = median(_error(point.predicted_s, point.measured_s) for point in points)
        caption += f", within {_off(better)} after calibration on the other half of the runs"
    return caption + "."


def _predictions_table(points: Sequence[PredictedPoint]) -> Table:
    axes = list(dict.fromkeys(axis for point in points for axis in point.values))
    header = ["run", *axes, "measured_s", "predicted_s", "uncalibrated_s", "measured_bytes", "predicted_bytes"]
    has_kinds = any(any(point.kinds) for point in points)
    return Table(
        [*header, "out_of_memory", "fits", "basis", *_KINDS * has_kinds],
        [
            [
                point.number,
                *(point.values.get(axis) for axis in axes),
                point.measured_s,
                point.predicted_s,
                point.plain_s,
                point.measured_bytes,
                point.predicted_bytes,
                point.is_oom,
                point.fits,
                point.basis,
                *point.kinds * has_kinds,
            ]
            for point in points
        ],
    )


class SizePoint(NamedTuple):
    """A training on a number of nodes."""

    nodes: int
    gpus: int
    days: float | None
    low: float | None
    high: float | None
    layout: str
    gpu_hours: float | None
    cost: float | None


def trade_off(sizes: Sequence[SizePoint], wanted_days: float | None = None) -> Drawing:
    """Draw training days (y) over nodes (x), both axes log, with the range of the prediction and ideal scaling."""
    feasible = [size for size in sizes if size.days is not None]
    if not feasible:
        return theme.nothing("None of the compared numbers of nodes can train this model.")
    counts = [size.nodes for size in feasible]
    drawing = go.Figure(
        layout=theme.layout(
            title="Nodes against training time",
            subtitle="the best layout on each number of nodes, bars: uncertainty of the prediction",
            x="Nodes",
            y="Training time (days)",
            xaxis={
                "type": "log",
                "tickmode": "array",
                "tickvals": counts,
                "ticktext": [str(count) for count in counts],
            },
            yaxis={"type": "log", "tickformat": "~g", "dtick": "D2"},
        )
    )
    first = feasible[0]
    drawing.add_trace(
        go.Scatter(
            x=counts,
            y=[(first.days or 0.0) * first.nodes / count for count in counts],
            mode="lines",
            name="ideal",
            line={"color": theme.GREY, "dash": "dash", "width": 1},
            hoverinfo="skip",
        )
    )
    drawing.add_trace(
        go.Scatter(
            x=counts,
            y=[size.days for size in feasible],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [(size.high or 0.0) - (size.days or 0.0) for size in feasible],
                "arrayminus": [(size.days or 0.0) - (size.low or 0.0) for size in feasible],
                "thickness": 1,
            },
            mode="lines+markers",
            name="predicted",
            line={"color": theme.GREEN},
            marker={"size": 8},
            hovertemplate="%{text}<extra></extra>",
            text=[
                theme.plain(f"{size.nodes} nodes, {size.gpus} GPUs: {significant(size.days)} days; {size.layout}")
                for size in feasible
            ],
        )
    )
    if wanted_days:
        drawing.add_hline(y=wanted_days, line={"color": theme.VERMILLION, "dash": "dot", "width": 1})
    return Drawing(drawing, _sizes_caption(feasible, len(sizes) - len(feasible), wanted_days), _sizes_table(sizes))


def _sizes_caption(feasible: Sequence[SizePoint], without: int, wanted_days: float | None) -> str:
    first, last = feasible[0], feasible[-1]
    caption = f"{first.nodes} nodes take {significant(first.days)} days, {last.nodes} take {significant(last.days)}"
    if first.days and last.days and first is not last:
        share = first.days * first.nodes / (last.days * last.nodes)
        caption += f": {quantity(100 * share, '%')} of ideal scaling"
    missing = f"{without} number of nodes has" if without == 1 else f"{without} numbers of nodes have"
    caption += f". {missing} no layout that fits." if without else "."
    return caption + (" The dotted line is the requested training time." if wanted_days else "")


def _sizes_table(sizes: Sequence[SizePoint]) -> Table:
    return Table(["nodes", "gpus", "days", "days_low", "days_high", "layout", "gpu_hours", "cost"], [*map(list, sizes)])
