"""A number of an experiment's runs, throughput above all, against GPUs, micro batch size or whatever was swept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from . import theme
from .axes import GPUS, RUN, Plan, alike, emulation_mark, log_ticks, names_of, plan, series_name, shown_x, x_axis, x_of
from .format import DASH, field_title, unit_for
from .measures import AUTO, DEFAULT, Measure, Options
from .points import RunPoint, in_order, is_number
from .theme import Drawing, Table

MAX_LINES = 24


def _counts(point: RunPoint, measure: Measure) -> bool:
    """Whether a run has a number to draw; what it reached before it ran out of memory is none."""
    return measure.value(point) is not None and point.state != "oom"


def figure(points: Sequence[RunPoint], options: Options = AUTO) -> Drawing:
    """Draw a number (y), samples/s unless told otherwise, against the main axis (x), one line per combination.

    Error bars are the 10th to 90th percentile of step time, turned into the number where it follows from it. Runs that
    were out of memory are crosses at the foot. Where GPUs vary, both axes are logarithmic and a dashed line shows ideal
    scaling from the best of the smallest runs.
    """
    measure = options.measure
    measured = [point for point in points if _counts(point, measure)]
    if not measured:
        what = measure.title.lower()
        if any(point.state == "finished" for point in points):
            came = "samples per second" if options.y == DEFAULT else "it"
            return theme.nothing(f"No {what}: these runs came without {came}.")
        return theme.nothing(f"No {what} yet: no run has finished.")
    points, others = alike(points, measured)
    measured = [point for point in points if _counts(point, measure)]
    chosen = plan(points, options)
    view = _view(measured, measure)
    x_values = in_order(x_of(point, chosen.x) for point in points)
    drawing = go.Figure(
        layout=theme.layout(
            title=measure.title,
            subtitle=_subtitle(measured, measure),
            x=theme.plain(field_title(chosen.x)) if chosen.x not in (GPUS, RUN) else chosen.x,
            y=f"{measure.title} ({view.unit})" if view.unit else measure.title,
            xaxis=x_axis(x_values, chosen.x, options),
            yaxis=_y_axis(chosen, options, view),
        )
    )
    lines, left_out = _lines(measured, chosen, measure)
    styles = theme.styles(list(lines))
    for names, members in lines.items():
        members.sort(key=lambda point: x_values.index(x_of(point, chosen.x)))
        drawing.add_trace(_line(members, names, chosen, styles[names], view))
    if chosen.x == GPUS:
        _add_ideal(drawing, measured, view)
    _add_out_of_memory(drawing, points, measured, chosen, view)
    drawing.update_layout(showlegend=len(drawing.data) > 1)
    if drawing.layout.yaxis.type == "log":  # the ideal may reach much further than what was measured
        drawing.update_layout(yaxis=log_ticks(y for trace in drawing.data for y in trace.y))
    return Drawing(drawing, _caption(points, measured, chosen, others, measure) + left_out, _table([*points, *others]))


def per_sample(points: Sequence[RunPoint], options: Options = AUTO) -> Drawing:
    """Draw the milliseconds of a step per sample, whatever the other figures show."""
    return figure(points, options._replace(y="ms_per_sample"))


class View(NamedTuple):
    """A measure in the unit of its axis: `shown = value / factor`."""

    measure: Measure
    factor: float
    unit: str

    def of(self, point: RunPoint) -> float:
        return (self.measure.value(point) or 0.0) / self.factor


def _view(measured: Sequence[RunPoint], measure: Measure) -> View:
    if measure.unit in ("samples/s", "tokens/s"):
        # Prefixes stand at the ticks, where 1 k and 10 M may be on one axis.
        return View(measure, 1.0, measure.unit)
    if measure.unit in ("s", "B", "FLOP/s"):
        unit = unit_for((measure.value(point) for point in measured), measure.unit)
        return View(measure, unit.factor, unit.name)
    return View(measure, 1.0, measure.unit)


def _subtitle(measured: Sequence[RunPoint], measure: Measure) -> str:
    has_spread = any(point.step_time_s and point.step_time_s.p10 for point in measured)
    if has_spread and measure.kind != "other":
        return "median of the measured steps, bars from p10 to p90"
    return "one point per run"


def _y_axis(chosen: Plan, options: Options, view: View) -> dict[str, Any]:
    is_log = options.y_scale == "log" or (
        options.y_scale == "auto" and chosen.x == GPUS and view.measure.kind != "other"
    )
    return {
        "tickformat": "~s" if view.factor == 1.0 else "",
        **({"type": "log"} if is_log else {"rangemode": "tozero"}),
    }


def _lines(
    measured: Sequence[RunPoint], chosen: Plan, measure: Measure
) -> tuple[dict[tuple[str, ...], list[RunPoint]], str]:
    """Sort the points into lines; of very many only those that reach the best number, and say so."""
    lines: dict[tuple[str, ...], list[RunPoint]] = {}
    for point in measured:
        lines.setdefault(names_of(point, chosen.lines), []).append(point)
    if len(lines) <= MAX_LINES:
        return lines, ""
    best = sorted(lines, key=lambda names: min(_goodness(point, measure) for point in lines[names]))[:MAX_LINES]
    which = "best" if measure.kind == "other" else "fastest"
    words = f" The {MAX_LINES} {which} of {len(lines)} lines are drawn; the numbers hold all."
    return {names: lines[names] for names in lines if names in best}, words


def _goodness(point: RunPoint, measure: Measure) -> float:
    """A number that is least for the best point."""
    value = measure.value(point) or 0.0
    return value if measure.least_is_best else -value


def _line(members: list[RunPoint], names: tuple[str, ...], chosen: Plan, style: theme.Style, view: View) -> go.Scatter:
    shown = [view.of(point) for point in members]
    bars = [_error_bar(point, view) for point in members]
    drawn_as_line = all(is_number(x_of(point, chosen.x)) for point in members) and chosen.x != RUN and len(members) > 1
    return go.Scatter(
        x=[shown_x(point, chosen) for point in members],
        y=shown,
        name=theme.plain(series_name(names, chosen.lines) + emulation_mark(members)),
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


def _error_bar(point: RunPoint, view: View) -> tuple[float, float]:
    """How far p10 and p90 of step time lie above and below the number, in the unit of the axis."""
    spread, value = point.step_time_s, view.of(point)
    if spread is None or not value or not spread.p10 or not spread.p90 or view.measure.kind == "other":
        return 0.0, 0.0
    if view.measure.kind == "time":
        return max(0.0, value * (spread.p90 / spread.median - 1)), max(0.0, value * (1 - spread.p10 / spread.median))
    return max(0.0, value * (spread.median / spread.p10 - 1)), max(0.0, value * (1 - spread.median / spread.p90))


def _add_ideal(drawing: go.Figure, measured: Sequence[RunPoint], view: View) -> None:
    """Draw what the best of the smallest runs would reach on more GPUs if nothing were lost."""
    if view.measure.kind == "other":
        return
    smallest = min(point.gpus for point in measured)
    best = min((p for p in measured if p.gpus == smallest), key=lambda point: _goodness(point, view.measure))
    counts = sorted({point.gpus for point in measured})
    is_weak = view.measure.unit == "s" and len({point.global_batch_size for point in measured}) > 1
    power = 0 if is_weak else -1 if view.measure.kind == "time" else 1
    drawing.add_trace(
        go.Scatter(
            x=counts,
            y=[view.of(best) * (count / smallest) ** power for count in counts],
            name=f"ideal from {smallest}",
            mode="lines",
            line={"color": theme.GREY, "dash": "dash", "width": 1},
            hoverinfo="skip",
        )
    )


def _add_out_of_memory(
    drawing: go.Figure, points: Sequence[RunPoint], measured: Sequence[RunPoint], chosen: Plan, view: View
) -> None:
    too_big = [point for point in points if point.state == "oom"]
    if not too_big:
        return
    lowest = min(view.of(point) for point in measured)
    drawing.add_trace(out_of_memory(too_big, chosen, lowest / 2 if drawing.layout.yaxis.type == "log" else 0.0))


def out_of_memory(too_big: Sequence[RunPoint], chosen: Plan, height: float) -> go.Scatter:
    """Mark the runs that were out of memory at the foot of a figure, those of one place once."""
    places: dict[Any, list[RunPoint]] = {}
    for point in too_big:
        places.setdefault(shown_x(point, chosen), []).append(point)
    return go.Scatter(
        x=list(places),
        y=[height] * len(places),
        name="OOM",
        mode="markers+text",
        text=["OOM" if len(members) == 1 else f"{len(members)} OOM" for members in places.values()],
        textposition="top center",
        marker={
            "color": theme.OOM_COLOUR,
            "symbol": "x-thin",
            "size": 9,
            "line": {"width": 2, "color": theme.OOM_COLOUR},
        },
        cliponaxis=False,
        hovertext=["<br><br>".join(point.hover() for point in members[:4]) for members in places.values()],
        hoverinfo="text",
    )


def _caption(
    points: Sequence[RunPoint], measured: Sequence[RunPoint], chosen: Plan, others: Sequence[RunPoint], measure: Measure
) -> str:
    best = min(measured, key=lambda point: _goodness(point, measure))
    end = "least" if measure.least_is_best else "most"
    said = f"{measure.text(measure.value(best))} at {end}, with {best.label} (run {best.number})."
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
        rows.append([point.number, *values, point.outcome, point.gpus, *times, point.samples_per_s, point.tokens_per_s])
    return Table(header, rows)
