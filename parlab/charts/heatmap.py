"""Two axes of a sweep as a map: one number in colour, out-of-memory cells hatched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from . import theme
from .axes import GPUS, PREFERRED, alike, x_of
from .format import field_title, field_value, significant, unit_for
from .measures import AUTO, Measure, Options
from .points import RunPoint, in_order, varied
from .theme import Drawing, Table

MAX_SIDE = 60
"""Values of an axis that still can be told apart."""
# From little to much: light to dark blue, readable in grey and by all colour visions.
SCALE = [[0.0, "#F1F6FB"], [0.5, "#7FB2DD"], [1.0, theme.BLUE]]


class _Place(NamedTuple):
    """What a cell shows."""

    point: RunPoint
    value: float | None
    others: int
    """Further runs that fell into this cell."""


def figure(points: Sequence[RunPoint], options: Options = AUTO) -> Drawing:
    """Draw a number as colour over two axes; of several runs in a cell the best, out-of-memory cells hatched."""
    measure = options.measure
    ended = [point for point in points if point.state in ("finished", "oom")]
    members = alike(ended, ended)[0] if ended else []
    axes = _axes(members, options)
    if axes is None:
        return theme.nothing("No map: it needs two axes that were swept.")
    across, down = axes
    columns, rows = in_order(x_of(p, across) for p in members), in_order(x_of(p, down) for p in members)
    if len(columns) > MAX_SIDE or len(rows) > MAX_SIDE:
        return theme.nothing(f"No map: {max(len(columns), len(rows))} values of an axis are too many to tell apart.")
    places = _places(members, across, down, measure)
    values = [place.value for place in places.values() if place.value is not None]
    if not values:
        return theme.nothing(f"No map: no run of these has a {measure.title.lower()}.")
    unit = unit_for(values, measure.unit) if measure.unit not in ("ms", "%") else None
    factor, name = (unit.factor, unit.name) if unit else (1.0, measure.unit)
    drawing = go.Figure(
        layout=theme.layout(
            title=f"{measure.title} over two axes",
            subtitle="the best run of each cell; hatched: out of memory" if any(p.others for p in places.values())
            else "one run in a cell; hatched: out of memory",
            x=_title(across),
            y=_title(down),
            xaxis=_axis(columns),
            yaxis={**_axis(rows), "autorange": "reversed", "showgrid": False},
        )
    )  # fmt: skip
    drawing.add_trace(_cells(places, columns, rows, factor, name, measure))
    _hatch(drawing, places, columns, rows)
    table: list[list[Any]] = [[p.point.number, *key, p.point.state, p.value] for key, p in places.items()]
    said = _caption(places, measure, name, factor)
    return Drawing(drawing, said, Table(["run", down, across, "state", options.y], table))


def _axes(points: Sequence[RunPoint], options: Options) -> tuple[str, str] | None:
    """Choose what runs across and what down: micro batch across where it was swept, GPUs before other axes."""
    axes = varied(points)
    if len({point.gpus for point in points}) > 1 and not any(
        all(p.values.get(axis) == p.gpus for p in points) for axis in axes
    ):
        axes = [*axes, GPUS]
    wanted = [axis for axis in (options.x, *options.by) if axis in axes]
    order = list(dict.fromkeys([*wanted, *([PREFERRED] if PREFERRED in axes else []), *axes]))
    return (order[0], order[1]) if len(order) > 1 else None


def _key(value: Any) -> str:
    return field_value(value)


def _places(points: Sequence[RunPoint], across: str, down: str, measure: Measure) -> dict[tuple[str, str], _Place]:
    places: dict[tuple[str, str], _Place] = {}
    for point in points:
        key = _key(x_of(point, down)), _key(x_of(point, across))
        value = measure.value(point) if point.state == "finished" else None
        known = places.get(key)
        if known is None:
            places[key] = _Place(point, value, 0)
            continue
        best = known.value is None or (value is not None and (value < known.value) == measure.least_is_best)
        kept = _Place(point, value, 0) if value is not None and best else known
        places[key] = kept._replace(others=known.others + 1)
    return places


def _title(axis: str) -> str:
    return axis if axis == GPUS else theme.plain(field_title(axis))


def _axis(values: Sequence[Any]) -> dict[str, Any]:
    """Cells lie at 0, 1, 2, ...: so hatching can be drawn between them."""
    texts = [theme.plain(field_value(value)) for value in values]
    return {
        "tickmode": "array", "tickvals": list(range(len(values))), "ticktext": texts, "ticks": "",
        "range": [-0.5, len(values) - 0.5], "showline": False,
    }  # fmt: skip


def _cells(
    places: dict[tuple[str, str], _Place],
    columns: Sequence[Any],
    rows: Sequence[Any],
    factor: float,
    unit: str,
    measure: Measure,
) -> go.Heatmap:
    found = [[places.get((_key(row), _key(column))) for column in columns] for row in rows]
    shown = [[place.value / factor if place and place.value is not None else None for place in line] for line in found]
    is_small = len(columns) * len(rows) <= 150
    texts = [[_text(place, factor) for place in line] for line in found]
    hovers = [
        [place.point.hover((measure.title.lower(), place.value, measure.unit)) if place else "" for place in line]
        for line in found
    ]
    return go.Heatmap(
        z=shown,
        text=texts if is_small else None,
        texttemplate="%{text}" if is_small else None,
        hovertext=hovers,
        hoverinfo="text",
        colorscale=SCALE,
        reversescale=measure.least_is_best,
        xgap=2,
        ygap=2,
        colorbar={"title": {"text": unit, "side": "right"}, "thickness": 12, "outlinewidth": 0, "tickformat": "~s"},
    )


def _text(place: _Place | None, factor: float) -> str:
    if place is None or place.value is None:
        return ""
    return significant(place.value / factor)


def _hatch(
    drawing: go.Figure, places: dict[tuple[str, str], _Place], columns: Sequence[Any], rows: Sequence[Any]
) -> None:
    """Draw three slanting lines and the word into each cell whose runs all were out of memory."""
    line = {"color": theme.OOM_COLOUR, "width": 1}
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            place = places.get((_key(row), _key(column)))
            if place is None or place.value is not None or place.point.state != "oom":
                continue
            left, right, low, high = x - 0.47, x + 0.47, y - 0.47, y + 0.47
            drawing.add_shape(type="rect", x0=left, x1=right, y0=low, y1=high, line=line)
            for share in (0.25, 0.5, 0.75):
                x0, y0 = left + (right - left) * share, low + (high - low) * share
                drawing.add_shape(type="line", x0=left, y0=y0, x1=x0, y1=low, line=line)
                drawing.add_shape(type="line", x0=x0, y0=high, x1=right, y1=y0, line=line)
            drawing.add_annotation(
                x=x, y=y, text="OOM", showarrow=False, hovertext=place.point.hover(), font={"size": 12}
            )


def _caption(places: dict[tuple[str, str], _Place], measure: Measure, unit: str, factor: float) -> str:
    known = [place for place in places.values() if place.value is not None]
    best = min(known, key=lambda place: (place.value or 0.0) * (1 if measure.least_is_best else -1))
    value = f"{significant((best.value or 0.0) / factor)} {unit}".strip()
    said = f"Best: {value}, {best.point.label} (run {best.point.number})."
    lost = sum(place.value is None and place.point.state == "oom" for place in places.values())
    return said + (f" {lost} of {len(places)} cells ran out of memory." if lost else "")
