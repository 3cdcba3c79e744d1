"""Two axes of a sweep as a map: one number in colour, out-of-memory cells hatched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from . import theme
from .axes import GPUS, PREFERRED, alike, x_of
from .format import field_title, field_value, significant, unit_for
from .measures import AUTO, Measure, Options
from .points import RunPoint, in_order, varied
from .theme import Drawing, Table

MAX_SIDE = 60
"""Values of an axis that still can be told apart."""
CLEAR = "rgba(0,0,0,0)"
_HALF = 0.47
_MAX_TEXTS = 150
# From little to much: light to dark blue, readable in grey and by all colour visions.
SCALE = [(0.0, "#F1F6FB"), (0.5, "#7FB2DD"), (1.0, theme.BLUE)]


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
    unit = None if measure.is_as_it_is else unit_for(values, measure.unit)
    factor, name = (unit.factor, unit.name) if unit else (1.0, measure.unit)
    drawing = go.Figure(
        layout=theme.layout(
            title=f"{measure.title} over two axes",
            subtitle=_subtitle(places, values, factor, name, measure),
            x=_title(across),
            y=_title(down),
            xaxis=cell_axis(columns),
            yaxis={**cell_axis(rows), "range": [len(rows) - 0.5, -0.5], "showgrid": False},
            barmode="overlay",
            showlegend=False,
        )
    )  # fmt: skip
    found = _located(places, columns, rows)
    drawing.add_trace(_cells([one for one in found if one[2].value is not None], factor, measure))
    too_big = [one for one in found if one[2].value is None and one[2].point.state == "oom"]
    if too_big:
        drawing.add_trace(_out_of_memory(too_big))
    table: list[list[Any]] = [[p.point.number, *key, p.point.outcome, p.value] for key, p in places.items()]
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


def _located(
    places: dict[tuple[str, str], _Place], columns: Sequence[Any], rows: Sequence[Any]
) -> list[tuple[int, int, _Place]]:
    """Put each place where its cell is: column, row."""
    keys = [(x, y, (_key(row), _key(column))) for y, row in enumerate(rows) for x, column in enumerate(columns)]
    return [(x, y, places[key]) for x, y, key in keys if key in places]


def _title(axis: str) -> str:
    return axis if axis == GPUS else theme.plain(field_title(axis))


def cell_axis(values: Sequence[Any]) -> dict[str, Any]:
    """Cells lie at 0, 1, 2, ...: so hatching can be drawn between them."""
    texts = [theme.plain(field_value(value)) for value in values]
    return {
        "tickmode": "array", "tickvals": list(range(len(values))), "ticktext": texts, "ticks": "",
        "range": [-0.5, len(values) - 0.5], "showline": False,
    }  # fmt: skip


def rectangles(places: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Draw cells at (column, row) as floating bars: Plotly's heatmap styles its pixels inline, against our policy."""
    return {
        "x": [x for x, _ in places],
        "base": [y - _HALF for _, y in places],
        "y": [2 * _HALF] * len(places),
        "width": [2 * _HALF] * len(places),
        "hoverinfo": "text",
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
    }


def shades(
    values: Sequence[float],
    scale: Sequence[tuple[float, str]],
    *,
    low: float | None = None,
    high: float | None = None,
    is_reversed: bool = False,
) -> list[str]:
    """Return a colour for each value, `low` and less being the first of the scale; by themselves they span all of it.

    Of numbers, Plotly would choose the same colours, but not the colour of the text on them.
    """
    low, high = min(values, default=0.0) if low is None else low, max(values, default=1.0) if high is None else high
    parts = [min(max((value - low) / (high - low or 1.0), 0.0), 1.0) for value in values]
    found: list[str] = sample_colorscale(
        [list(stop) for stop in scale], [1.0 - part for part in parts] if is_reversed else parts
    )
    return found


def _cells(found: Sequence[tuple[int, int, _Place]], factor: float, measure: Measure) -> go.Bar:
    values = [(place.value or 0.0) / factor for _, _, place in found]
    return go.Bar(
        **rectangles([(x, y) for x, y, _ in found]),
        text=[significant(value) for value in values] if len(found) <= _MAX_TEXTS else None,
        hovertext=[p.point.hover((measure.title.lower(), p.value, measure.unit)) for _, _, p in found],
        # No colour bar, which would be styled inline as well: the subtitle says what dark means.
        marker={"color": shades(values, SCALE, is_reversed=measure.least_is_best), "line": {"width": 0}},
        customdata=values,
    )


def _out_of_memory(found: Sequence[tuple[int, int, _Place]]) -> go.Bar:
    return go.Bar(
        **rectangles([(x, y) for x, y, _ in found]),
        text=["OOM"] * len(found),
        hovertext=[place.point.hover() for _, _, place in found],
        marker={
            "color": CLEAR,
            "pattern": {
                "shape": "/",
                "fgcolor": theme.OOM_COLOUR,
                "bgcolor": "rgba(0,0,0,0)",
                "size": 8,
                "solidity": 0.2,
            },
            "line": {"width": 1, "color": theme.OOM_COLOUR},
        },
    )


def _subtitle(
    places: dict[tuple[str, str], _Place], values: Sequence[float], factor: float, unit: str, measure: Measure
) -> str:
    ends = sorted([min(values), max(values)], reverse=measure.least_is_best)
    light, dark = (significant(value / factor) for value in ends)
    which = "the best run of each cell" if any(place.others for place in places.values()) else "one run in a cell"
    return f"{which}; {unit or measure.title.lower()}, light {light} to dark {dark}; hatched: out of memory"


def _caption(places: dict[tuple[str, str], _Place], measure: Measure, unit: str, factor: float) -> str:
    known = [place for place in places.values() if place.value is not None]
    best = min(known, key=lambda place: (place.value or 0.0) * (1 if measure.least_is_best else -1))
    value = f"{significant((best.value or 0.0) / factor)} {unit}".strip()
    said = f"Best: {value}, {best.point.label} (run {best.point.number})."
    lost = sum(place.value is None and place.point.state == "oom" for place in places.values())
    return said + (f" {lost} of {len(places)} cells ran out of memory." if lost else "")
