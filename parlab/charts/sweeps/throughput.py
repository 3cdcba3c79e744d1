"""A measure of an experiment's runs, by default throughput, against GPUs, micro batch size or another swept axis."""

from __future__ import annotations

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
    is_network,
    layout_note,
    like_with_like,
    log_ticks,
    names_of,
    plan,
    series_name,
    shown_x,
    unknown_gpus,
    x_axis,
    x_of,
)
from parlab.charts.format import unit_for
from parlab.charts.labels import label_ends, mark_best
from parlab.charts.measures import AUTO, DEFAULT, MEASURES, Available, Measure, Options, suited
from parlab.charts.points import RunPoint, device, devices, in_order, is_number, with_kinds
from parlab.charts.repeats import asymmetric, each_run, lead_note, values_of
from parlab.charts.theme import Drawing, Table

PER_SAMPLE = "ms_per_sample"
MAX_LINES = 24
WITH_PREFIX = 10_000
"""Values from which texts have a prefix (charts/format.py)."""


def _counts(point: RunPoint, measure: Measure) -> bool:
    """Whether a run has a value to draw; values from before it ran out of memory do not count."""
    return measure.value(point) is not None and point.state != "oom"


TITLE = "Throughput"
TITLE_PER_SAMPLE = "Time per sample"


def missing(available: Available) -> str:
    """Say why there is nothing of the measure to draw; empty where there is."""
    points, options, _ = available
    options = suited(points, options)
    if any(_counts(point, options.measure) for point in points):
        return ""
    if not any(point.state == "finished" for point in points):
        return "no run has finished"
    return f"no finished run has {'samples per second' if options.y == DEFAULT else 'a value'}"


def missing_per_sample(available: Available) -> str:
    """Say why time per sample is not worth a figure of its own; empty where it is."""
    points, options, _ = available
    if reason := missing(Available(points, options._replace(y=PER_SAMPLE))):
        return reason
    if options.y == PER_SAMPLE:
        return "shown by the first figure"
    return (
        ""
        if len({point.gpus for point in points if point.gpus}) > 1
        else f"all runs have the same number of {devices(points)}"
    )


def figure(points: Sequence[RunPoint], options: Options = AUTO) -> Drawing:
    """Draw a measure (y, by default samples/s) against the main axis (x), one line per combination of the other axes.

    Error bars span the 10th to 90th percentile of step time, converted to the measure where it follows from step time.
    Runs that ran out of memory are crosses at the bottom. Where the number of GPUs varies, both axes are logarithmic
    and a dashed line shows ideal scaling from the best of the smallest runs.
    """
    options = suited(points, options)
    measure = options.measure
    if reason := missing(Available(points, options)):
        return theme.missing(measure.title, reason)
    points, others = alike(points, [point for point in points if _counts(point, measure)])
    measured = [point for point in points if _counts(point, measure)]
    chosen = plan(points, options)
    without_gpus = unknown_gpus(points) if chosen.x == GPUS else ""
    if without_gpus:
        points, measured = [p for p in points if p.gpus], [p for p in measured if p.gpus]
    view = _view(measured, measure)
    x_values = in_order(x_of(point, chosen.x) for point in points)
    drawing = go.Figure(
        layout=theme.layout(
            title=measure.title,
            subtitle=_subtitle(measured, measure),
            x=axis_title(chosen.x, measured),
            y=f"{measure.title} ({view.unit})" if view.unit else measure.title,
            xaxis=x_axis(x_values, chosen.x, options),
            yaxis=_y_axis(measured, chosen, options, view),
        )
    )
    lines, left_out = _lines(measured, chosen, measure)
    styles = theme.styles(list(lines))
    for names, members in lines.items():
        members.sort(key=lambda point: x_values.index(x_of(point, chosen.x)))
        drawing.add_trace(_line(members, names, chosen, styles[names], view))
    has_ideal = chosen.x == GPUS and _add_ideal(drawing, measured, view)
    _add_out_of_memory(drawing, points, measured, chosen, view)
    drawing.update_layout(showlegend=len(drawing.data) > 1)
    if drawing.layout.yaxis.type == "log":  # the ideal may reach much further than what was measured
        drawing.update_layout(yaxis=log_ticks(y for trace in drawing.data for y in trace.y))
    label_ends(drawing)
    _mark_best(drawing, measured, chosen, view, has_ideal=has_ideal)
    return Drawing(
        drawing,
        _best_point_caption(points, measured, chosen, others, measure) + left_out + without_gpus,
        _throughput_table(each_run([*points, *others]), options.y),
    )


def _mark_best(drawing: go.Figure, measured: Sequence[RunPoint], chosen: Plan, view: View, *, has_ideal: bool) -> None:
    """Name the best of several points."""
    best = min(measured, key=lambda point: _goodness(point, view.measure))
    if len(measured) > 1:
        # Measured rates lie below the ideal ones, whose line has its name at its end.
        is_below = has_ideal and not view.measure.least_is_best
        text = f"best {view.measure.text_of(best)}"
        mark_best(drawing, shown_x(best, chosen), view.of(best), text, is_below=is_below)


def per_sample(points: Sequence[RunPoint], options: Options = AUTO) -> Drawing:
    """Draw milliseconds per sample, whichever measure the other figures show."""
    return figure(points, options._replace(y=PER_SAMPLE))


class View(NamedTuple):
    """A measure in the unit of its axis: `drawn = value / factor`."""

    measure: Measure
    factor: float
    unit: str

    def of(self, point: RunPoint) -> float:
        return (self.measure.value(point) or 0.0) / self.factor


def _view(measured: Sequence[RunPoint], measure: Measure) -> View:
    if measure.unit in ("samples/s", "tokens/s"):
        # The ticks have prefixes, since 1 k and 10 M can be on one axis.
        return View(measure, 1.0, measure.unit)
    if measure.unit in ("s", "B", "FLOP/s"):
        unit = unit_for((measure.value(point) for point in measured), measure.unit)
        return View(measure, unit.factor, unit.name)
    return View(measure, 1.0, measure.unit)


def _subtitle(measured: Sequence[RunPoint], measure: Measure) -> str:
    if any(point.repeats for point in measured):
        return "mean of the repeats of each point, bars from the smallest to the largest"
    has_spread = any(point.step_time_s and point.step_time_s.p10 for point in measured)
    if has_spread and measure.kind != "other":
        return "median of the measured steps, bars from p10 to p90"
    return "one point per run"


def _y_axis(measured: Sequence[RunPoint], chosen: Plan, options: Options, view: View) -> dict[str, Any]:
    is_log = options.y_scale == "log" or (
        options.y_scale == "auto" and chosen.x == GPUS and view.measure.kind != "other"
    )
    # Values in a fixed unit, such as ms, take no prefix, since 500m ms is not a number that people read; nor do values
    # below 10,000, which texts write without one.
    is_whole = view.measure.is_as_it_is or max(view.of(point) for point in measured) < WITH_PREFIX
    return {
        "tickformat": ",~g" if is_whole else "~s" if view.factor == 1.0 else "",
        **({"type": "log"} if is_log else {"rangemode": "tozero"}),
    }


def _lines(
    measured: Sequence[RunPoint], chosen: Plan, measure: Measure
) -> tuple[dict[tuple[str, ...], list[RunPoint]], str]:
    """Group the points into lines; of more than MAX_LINES keep the best, with a note for the caption."""
    lines: dict[tuple[str, ...], list[RunPoint]] = {}
    for point in measured:
        lines.setdefault(names_of(point, chosen.lines), []).append(point)
    if len(lines) <= MAX_LINES:
        return lines, ""
    best = sorted(lines, key=lambda names: min(_goodness(point, measure) for point in lines[names]))[:MAX_LINES]
    which = "best" if measure.kind == "other" else "fastest"
    note = f" Only the {MAX_LINES} {which} of {len(lines)} lines are drawn; the CSV contains all."
    return {names: lines[names] for names in lines if names in best}, note


def _goodness(point: RunPoint, measure: Measure) -> float:
    """Return a key for sorting: least for the best point."""
    value = measure.value(point) or 0.0
    return value if measure.least_is_best else -value


def _line(members: list[RunPoint], names: tuple[str, ...], chosen: Plan, style: theme.Style, view: View) -> go.Scatter:
    has_order = is_network(chosen.x) or all(is_number(x_of(point, chosen.x)) for point in members)
    drawn_as_line = has_order and chosen.x != RUN and len(members) > 1
    return go.Scatter(
        x=[shown_x(point, chosen) for point in members],
        y=[view.of(point) for point in members],
        name=theme.plain(series_name(names, chosen.lines) + emulation_mark(members)),
        mode="lines+markers" if drawn_as_line else "markers",
        line={"color": style.colour, "dash": style.dash, "width": 2},
        marker={"color": style.colour, "symbol": style.symbol, "size": 9},
        error_y=asymmetric([_error_bar(point, view) for point in members]),
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
    """Return the lengths of the error bar above and below the value, in the unit of the axis."""
    spread, value = point.step_time_s, view.of(point)
    if point.repeats:
        values = [number / view.factor for number in values_of(point, view.measure.value)]
        return max(values) - value, value - min(values)
    if spread is None or not value or not spread.p10 or not spread.p90 or view.measure.kind == "other":
        return 0.0, 0.0
    if view.measure.kind == "time":
        return max(0.0, value * (spread.p90 / spread.median - 1)), max(0.0, value * (1 - spread.p10 / spread.median))
    return max(0.0, value * (spread.median / spread.p10 - 1)), max(0.0, value * (1 - spread.median / spread.p90))


def _add_ideal(drawing: go.Figure, measured: Sequence[RunPoint], view: View) -> bool:
    """Draw ideal scaling from the best of the smallest runs; return whether there is any."""
    if view.measure.kind == "other":
        return False
    measured, left_out = like_with_like(measured)
    counts = sorted({point.gpus for point in measured if point.gpus})
    if len(counts) < 2:
        return False
    smallest = counts[0]
    best = min((p for p in measured if p.gpus == smallest), key=lambda point: _goodness(point, view.measure))
    is_weak = view.measure.unit == "s" and len({point.global_batch_size for point in measured}) > 1
    power = 0 if is_weak else -1 if view.measure.kind == "time" else 1
    drawing.add_trace(
        go.Scatter(
            x=counts,
            y=[view.of(best) * (count / smallest) ** power for count in counts],
            name=f"ideal from {smallest}{', same layout' if left_out else ''}",
            mode="lines",
            line={"color": theme.GREY, "dash": "dash", "width": 1},
            hoverinfo="skip",
        )
    )
    return True


def _add_out_of_memory(
    drawing: go.Figure, points: Sequence[RunPoint], measured: Sequence[RunPoint], chosen: Plan, view: View
) -> None:
    too_big = [point for point in points if point.state == "oom"]
    if not too_big:
        return
    lowest = min(view.of(point) for point in measured)
    drawing.add_trace(out_of_memory(too_big, chosen, lowest / 2 if drawing.layout.yaxis.type == "log" else 0.0))


def out_of_memory(too_big: Sequence[RunPoint], chosen: Plan, height: float) -> go.Scatter:
    """Mark the runs that ran out of memory at the bottom of a figure, one marker per x value."""
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


def _best_point_caption(
    points: Sequence[RunPoint], measured: Sequence[RunPoint], chosen: Plan, others: Sequence[RunPoint], measure: Measure
) -> str:
    best = min(measured, key=lambda point: _goodness(point, measure))
    end = "Lowest" if measure.least_is_best else "Highest"
    caption = f"{end}: {measure.text_of(best)}, {best.full_label}."
    caption += lead_note(measured, measure.value, least_is_best=measure.least_is_best)
    too_big = sum(point.state == "oom" for point in points)
    if too_big:
        caption += f" {too_big} of {len(points)} ran out of memory."
    if others:
        runs = ", ".join(
            f"run {point.number} ({point.label}: {point.state.replace('oom', 'OOM')})" for point in others[:5]
        )
        caption += f" Not drawn because they have other axes: {runs}{' and more' if len(others) > 5 else ''}."
    if chosen.x == GPUS:
        caption += f" {_scaling(measured)}{layout_note(measured)}"
    return caption


def _scaling(measured: Sequence[RunPoint]) -> str:
    """Classify the sweep: equal global batch (strong scaling), equal batch per GPU (weak), or neither."""
    batches = {point.global_batch_size for point in measured}
    if None in batches:
        return f"Batch sizes are unknown; the ideal line assumes a speedup equal to the number of {devices(measured)}."
    if len(batches) == 1:
        return f"Strong scaling: {batches.pop()} samples per step in total."
    shares = {(point.global_batch_size or 0) / point.gpus for point in measured if point.gpus}
    if len(shares) == 1:
        return f"Weak scaling: {shares.pop():g} samples per step per {device(measured)}."
    return f"Neither strong nor weak scaling: both the global batch and the batch per {device(measured)} vary."


_TABLE_MEASURES = ("step_time", "samples_per_s", "tokens_per_s")


def _throughput_table(points: Sequence[RunPoint], name: str) -> Table:
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
    if name in MEASURES and name not in _TABLE_MEASURES:
        header.append(name)
        rows = [[*row, MEASURES[name].value(point)] for row, point in zip(rows, points, strict=True)]
    return with_kinds(header, rows, points)
