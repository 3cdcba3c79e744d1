"""Choice of the x axis of a figure, and of the axes that separate its lines."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from . import theme
from .fields import field_heading, value_label
from .format import field_value
from .measures import AUTO, Options
from .points import RunPoint, devices, is_number, shared_marks, varied

GPUS = "GPUs"
RUN = "Run"
SIZE_AXES = (
    "parallel.data_parallel_size",
    "parallel.tensor_parallel_size",
    "parallel.pipeline_parallel_size",
    "cluster.nodes",
    "cluster.gpus_per_node",
)
PREFERRED = "train.micro_batch_size"
_TABLE = 4
_PER_COUNT = 1.25
"""Rows of such a table for each number of GPUs, at most on average."""
_NEAREST = 0.035
"""Ticks closer than this share of an axis would overlap."""
_NETWORK = re.compile(r"(?i)\bnetwork|\bdelay|bandwidth|latency")


class Plan(NamedTuple):
    """The x axis, and the axes that separate the lines."""

    x: str
    lines: list[str]


def plan(points: Sequence[RunPoint], options: Options = AUTO) -> Plan:
    """Choose x: GPUs if they vary, else micro batch size, else the first numeric axis, else the first axis.

    A person's choice takes precedence if the points have that axis.
    """
    axes = varied(points)
    chosen = _planned(points, axes)
    if (
        options.x
        and options.x != chosen.x
        and options.x in (*axes, GPUS, RUN)
        and (options.x != GPUS or any(point.gpus for point in points))
    ):
        chosen = Plan(options.x, [axis for axis in axes if axis != options.x] if options.x != RUN else [])
    by = [axis for axis in options.by if axis in axes and axis != chosen.x]
    return Plan(chosen.x, by) if by else chosen


def _planned(points: Sequence[RunPoint], axes: list[str]) -> Plan:
    if len({point.gpus for point in points if point.gpus}) > 1:
        return _over_gpus(points, axes)
    network = network_axis(axes)
    if network:
        return Plan(network, [axis for axis in axes if axis != network])
    numeric = [axis for axis in axes if all(is_number(point.values.get(axis)) for point in points)]
    x = PREFERRED if PREFERRED in numeric else next(iter(numeric or axes), RUN)
    return Plan(x, [axis for axis in axes if axis != x])


def _over_gpus(points: Sequence[RunPoint], axes: list[str]) -> Plan:
    # An imported sweep can have the number of GPUs under another name.
    lines = [axis for axis in axes if axis not in SIZE_AXES and not _is_gpus(points, axis)]
    # Several layouts of the same number of GPUs do not form a line: then sizes separate the lines too.
    places = [(point.gpus, names_of(point, lines)) for point in points]
    counts = {point.gpus for point in points}
    if len(points) >= _TABLE and len({names for _, names in places}) == len(points) <= _PER_COUNT * len(counts):
        # A table whose rows all differ in everything, such as a system for each number of GPUs: one series.
        return Plan(GPUS, [])
    return Plan(GPUS, lines if len(set(places)) == len(places) else axes)


def axis_title(axis: str, points: Sequence[RunPoint]) -> str:
    """Return an axis as the title of figures and choices; processes on processors are not called GPUs."""
    if axis == GPUS:
        word = devices(points)
        return word[:1].upper() + word[1:]
    return axis if axis == RUN else theme.plain(field_heading(axis))


def unknown_gpus(points: Sequence[RunPoint]) -> str:
    """Return a sentence about runs that no axis of GPUs can show; empty without any."""
    runs = [str(point.number) for point in points if not point.gpus]
    if not runs:
        return ""
    named = ", ".join(runs[:5]) + (" and others" if len(runs) > 5 else "")
    return (
        f" Left out, because their number of {devices(points)} is unknown: run{'s' if len(runs) > 1 else ''} {named}."
    )


_LAYOUT_AXES = ("parallel.tensor_parallel_size", "parallel.pipeline_parallel_size")


def like_with_like(points: Sequence[RunPoint]) -> tuple[list[RunPoint], list[RunPoint]]:
    """Split the points into those of the most common layout and the others, unless the sweep varies the layout."""
    layouts = [point.layout for point in points]
    if any(axis in point.values for point in points for axis in _LAYOUT_AXES) or len(set(layouts)) < 2:
        return list(points), []
    most = max(layouts, key=layouts.count)
    return [p for p in points if p.layout == most], [p for p in points if p.layout != most]


def layout_note(points: Sequence[RunPoint]) -> str:
    """Say which runs have another layout than the others, so that their scaling cannot be compared; empty if none."""
    alike_points, others = like_with_like(points)
    if not others:
        return ""
    named: dict[str, list[str]] = {}
    for point in others:
        named.setdefault(_layout_text(point.layout), []).append(str(point.number))
    odd = "; ".join(
        f"run{'s' if len(runs) > 1 else ''} {', '.join(runs[:5])} {'are' if len(runs) > 1 else 'is'} {text}"
        for text, runs in named.items()
    )
    return f" Compared are runs of the same layout: {odd}, the others are {_layout_text(alike_points[0].layout)}."


def _layout_text(layout: tuple[int, int] | None) -> str:
    return f"TP {layout[0]}, PP {layout[1]}" if layout else "of unknown layout"


def network_axis(axes: Sequence[str]) -> str:
    """Return the axis that sets the network, which matters most where several others vary too; empty without one."""
    return next(filter(is_network, axes), "") if len(axes) > 1 else ""


def is_network(axis: str) -> bool:
    return _NETWORK.search(axis) is not None


def _is_gpus(points: Sequence[RunPoint], axis: str) -> bool:
    return all(point.values.get(axis) == point.gpus for point in points)


def alike(points: Sequence[RunPoint], measured: Sequence[RunPoint]) -> tuple[list[RunPoint], list[RunPoint]]:
    """Split the points into those with the most common axes of the measured ones, and the others."""
    kinds = [frozenset(point.values) for point in measured]
    most = max(kinds, key=kinds.count)
    return (
        [point for point in points if frozenset(point.values) == most],
        [point for point in points if frozenset(point.values) != most],
    )


def names_of(point: RunPoint, lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(field_value(point.values.get(axis)) for axis in lines)


def x_of(point: RunPoint, axis: str) -> Any:
    if axis == GPUS:
        return point.gpus
    return point.number if axis == RUN else point.values.get(axis)


def x_axis(values: Sequence[Any], axis: str, options: Options = AUTO) -> dict[str, Any]:
    if not all(is_number(value) for value in values) or axis == RUN:
        return {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": [theme.plain(field_value(v)) for v in values],
        }
    doubling = min(values) > 0 and max(values) >= 4 * min(values)
    is_log = (axis == GPUS or doubling) if options.x_scale == "auto" else options.x_scale == "log"
    if is_log and min(values) > 0:
        return {"type": "log", **_ticks(values, math.log10, axis)}
    # On a linear axis, ticks at doublings would overlap near zero.
    return {"type": "linear", **({} if doubling else _ticks(values, float, axis))}


def _ticks(values: Sequence[float], place: Callable[[float], float], axis: str) -> dict[str, Any]:
    """Return ticks at the values, the last one and those before it whose labels do not overlap."""
    ordered = sorted(set(values), reverse=True)
    span = place(ordered[0]) - place(ordered[-1])
    shown = ordered[:1]
    for value in ordered[1:]:
        if place(shown[-1]) - place(value) >= _NEAREST * span:
            shown.append(value)
    shown.reverse()
    # Values of a configuration are shown as they are typed; GPUs are counted.
    texts = [f"{value:,}" if axis == GPUS else field_value(value) for value in shown]
    return {"tickmode": "array", "tickvals": shown, "ticktext": texts}


def log_ticks(values: Iterable[float]) -> dict[str, Any]:
    """Space the ticks of a logarithmic axis so that their labels do not overlap."""
    positive = [value for value in values if value > 0]
    decades = math.log10(max(positive) / min(positive)) if positive else 0.0
    if decades < 0.9:
        return {}
    return {"dtick": "D2"} if decades < 3 else {"dtick": math.ceil(decades / 8)}


def shown_x(point: RunPoint, chosen: Plan) -> Any:
    value = x_of(point, chosen.x)
    return value if is_number(value) and chosen.x != RUN else theme.plain(field_value(value))


def series_name(names: tuple[str, ...], lines: Sequence[str]) -> str:
    named = [value_label(axis, name) if _is_bare(name) else name for name, axis in zip(names, lines, strict=True)]
    return ", ".join(named) or "measured"


def _is_bare(name: str) -> bool:
    """Whether a value means nothing without its field: `2`, `0.5`, `yes`."""
    return name in ("yes", "no", "none") or name.replace(".", "", 1).isdigit()


def emulation_mark(members: Sequence[RunPoint]) -> str:
    """Return a mark for the name of a line with emulated or learnt runs."""
    share = shared_marks([point.marks for point in members])
    return f" ({share})" if share else ""
