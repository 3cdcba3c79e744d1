"""A measure as colour over two axes of a sweep; out-of-memory cells are hatched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from parlab.charts import theme
from parlab.charts.axes import GPUS, PREFERRED, alike, axis_title, network_axis, x_of
from parlab.charts.format import field_label, field_value, significant, unit_for
from parlab.charts.measures import AUTO, Available, Measure, Options, suited
from parlab.charts.points import RunPoint, in_order, varied, with_kinds
from parlab.charts.repeats import lead_note, values_of, with_deviation
from parlab.charts.theme import Drawing

TITLE = "Heatmap"
MAX_SIDE = 60
"""More values of an axis cannot be told apart."""
CLEAR = "rgba(0,0,0,0)"
_HALF = 0.47
_MAX_TEXTS = 150
# Light to dark blue: readable in greyscale and with any colour vision.
SCALE = [(0.0, "#F1F6FB"), (0.5, "#7FB2DD"), (1.0, theme.BLUE)]


class _Place(NamedTuple):
    """What a cell shows."""

    point: RunPoint
    value: float | None
    others: int
    """Further runs in the same cell."""


class _Grid(NamedTuple):
    """Runs by their values on two axes."""

    across: str
    down: str
    columns: list[Any]
    rows: list[Any]
    places: dict[tuple[str, str], _Place]
    """By row and column."""

    @property
    def values(self) -> list[float]:
        return [place.value for place in self.places.values() if place.value is not None]

    @property
    def is_diagonal(self) -> bool:
        """Whether the axes vary together: no row and no column compares runs."""
        return len(self.places) <= max(len(self.columns), len(self.rows)) and min(len(self.columns), len(self.rows)) > 1

    def located(self) -> list[tuple[int, int, _Place]]:
        """List the places with the coordinates of their cells: column, row."""
        return [
            (x, y, self.places[_key(row), _key(column)])
            for y, row in enumerate(self.rows)
            for x, column in enumerate(self.columns)
            if (_key(row), _key(column)) in self.places
        ]


def missing(available: Available) -> str:
    """Say why there is no heatmap to draw; empty where there is."""
    points, options, _ = available
    if not points:
        return "no run has finished"
    options = suited(points, options)
    grid = _grid(points, options)
    if grid is None:
        return "needs runs that differ on two axes"
    if not (options.x or options.by) and grid.is_diagonal:
        return f"each {field_label(grid.across)} has one {field_label(grid.down)}, so a grid would be empty elsewhere"
    if len(grid.columns) > MAX_SIDE or len(grid.rows) > MAX_SIDE:
        return f"an axis has {max(len(grid.columns), len(grid.rows))} values, the limit is {MAX_SIDE}"
    return "" if grid.values else f"no finished run has a value of {options.measure.title}"


def figure(points: Sequence[RunPoint], options: Options = AUTO) -> Drawing:
    """Draw a measure as colour over two axes: the best run of each cell; out-of-memory cells are hatched."""
    options = suited(points, options)
    grid = _grid(points, options)
    reason = missing(Available(points, options))
    if grid is None or reason:
        return theme.missing(TITLE, reason)
    measure = options.measure
    unit = None if measure.is_as_it_is else unit_for(grid.values, measure.unit)
    factor, name = (unit.factor, unit.name) if unit else (1.0, measure.unit)
    drawing = go.Figure(
        layout=theme.layout(
            title=f"{measure.title} over two axes",
            subtitle=_subtitle(grid, factor, name, measure),
            x=axis_title(grid.across, points),
            y=axis_title(grid.down, points),
            xaxis=cell_axis(grid.columns),
            yaxis={**cell_axis(grid.rows), "range": [len(grid.rows) - 0.5, -0.5], "showgrid": False},
            barmode="overlay",
            showlegend=False,
        )
    )
    located = grid.located()
    drawing.add_trace(_cells([cell for cell in located if cell[2].value is not None], factor, measure))
    too_big = [cell for cell in located if cell[2].value is None and cell[2].point.state == "oom"]
    if too_big:
        drawing.add_trace(_out_of_memory(too_big))
    table: list[list[Any]] = [[p.point.number, *key, p.point.outcome, p.value] for key, p in grid.places.items()]
    header = ["run", grid.down, grid.across, "state", options.y]
    numbers = with_kinds(header, table, [place.point for place in grid.places.values()])
    return Drawing(drawing, _best_cell_caption(grid.places, measure, name, factor), numbers)


def _grid(points: Sequence[RunPoint], options: Options) -> _Grid | None:
    """Sort the finished and out-of-memory runs into a grid; None where they do not differ on two axes."""
    ended = [point for point in points if point.state in ("finished", "oom")]
    members = alike(ended, ended)[0] if ended else []
    axes = _axes(members, options)
    if axes is None:
        return None
    across, down = axes
    columns, rows = in_order(x_of(p, across) for p in members), in_order(x_of(p, down) for p in members)
    return _Grid(across, down, columns, rows, _places(members, across, down, options.measure))


def _axes(points: Sequence[RunPoint], options: Options) -> tuple[str, str] | None:
    """Choose what runs across and what down: the chosen axes first, then micro batch size, GPUs last."""
    axes = varied(points)
    if len({point.gpus for point in points}) > 1 and not any(
        all(p.values.get(axis) == p.gpus for p in points) for axis in axes
    ):
        axes = [*axes, GPUS]
    chosen = [axis for axis in (options.x, *options.by) if axis in axes]
    network = network_axis(axes)
    rest = [axis for axis in axes if axis not in (network, PREFERRED)]
    # Of three axes, the network and what it acts on; the best micro batch size of each cell counts.
    first = [network, *rest] if network and len(axes) > 2 else []
    order = list(dict.fromkeys([*chosen, *first, *([PREFERRED] if PREFERRED in axes else []), *axes]))
    return (order[0], order[1]) if len(order) > 1 else None


def _key(value: Any) -> str:
    return field_value(value)


def _places(points: Sequence[RunPoint], across: str, down: str, measure: Measure) -> dict[tuple[str, str], _Place]:
    places: dict[tuple[str, str], _Place] = {}
    for point in points:
        key = _key(x_of(point, down)), _key(x_of(point, across))
        value = measure.value(point) if point.state == "finished" else None
        best = places.get(key)
        if best is None:
            places[key] = _Place(point, value, 0)
            continue
        is_better = best.value is None or (value is not None and (value < best.value) == measure.least_is_best)
        winner = _Place(point, value, 0) if value is not None and is_better else best
        places[key] = winner._replace(others=best.others + 1)
    return places


def cell_axis(values: Sequence[Any]) -> dict[str, Any]:
    """Return an axis with cells at 0, 1, 2, ..., where rectangles can be drawn."""
    texts = [theme.plain(field_value(value)) for value in values]
    return {
        "tickmode": "array", "tickvals": list(range(len(values))), "ticktext": texts, "ticks": "",
        "range": [-0.5, len(values) - 0.5], "showline": False,
    }  # fmt: skip


def rectangles(places: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return cells at (column, row) as floating bars.

    Plotly's own heatmap sets inline styles, which the content security policy forbids.
    """
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
    """Return a colour for each value on a scale from `low` to `high` (default: the least and the greatest value).

    Plotly would choose the same colours from the numbers, but could not choose a readable text colour for them.
    """
    low, high = min(values, default=0.0) if low is None else low, max(values, default=1.0) if high is None else high
    parts = [min(max((value - low) / (high - low or 1.0), 0.0), 1.0) for value in values]
    colours: list[str] = sample_colorscale(
        [list(stop) for stop in scale], [1.0 - part for part in parts] if is_reversed else parts
    )
    return colours


def _cell_text(place: _Place, factor: float, measure: Measure) -> str:
    """Write the value of a cell with the digits that the file of its run prints."""
    value = place.value or 0.0
    text = significant(value / factor, measure.digits(place.point, value))
    return with_deviation(text, values_of(place.point, measure.value), factor)


def _cells(cells: Sequence[tuple[int, int, _Place]], factor: float, measure: Measure) -> go.Bar:
    values = [(place.value or 0.0) / factor for _, _, place in cells]
    return go.Bar(
        **rectangles([(x, y) for x, y, _ in cells]),
        text=[_cell_text(place, factor, measure) for _, _, place in cells] if len(cells) <= _MAX_TEXTS else None,
        hovertext=[p.point.hover((measure.title.lower(), p.value, measure.unit)) for _, _, p in cells],
        # A colour bar would set inline styles as well, so the subtitle gives the ends of the scale.
        marker={"color": shades(values, SCALE, is_reversed=measure.least_is_best), "line": {"width": 0}},
        customdata=values,
    )


def _out_of_memory(cells: Sequence[tuple[int, int, _Place]]) -> go.Bar:
    return go.Bar(
        **rectangles([(x, y) for x, y, _ in cells]),
        text=["OOM"] * len(cells),
        hovertext=[place.point.hover() for _, _, place in cells],
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


def _subtitle(grid: _Grid, factor: float, unit: str, measure: Measure) -> str:
    measured = [place for place in grid.places.values() if place.value is not None]
    ordered = sorted(measured, key=lambda place: place.value or 0.0, reverse=measure.least_is_best)
    light, dark = (_cell_text(place, factor, measure) for place in (ordered[0], ordered[-1]))
    has_others = any(place.others for place in grid.places.values())
    which = "the best run of each cell" if has_others else "one run per cell"
    if any(place.point.repeats for place in measured):
        which = which.replace("run", "mean of repeats")
    return f"{which}; {unit or measure.title.lower()}, light {light} to dark {dark}; hatched: out of memory"


def _best_cell_caption(places: dict[tuple[str, str], _Place], measure: Measure, unit: str, factor: float) -> str:
    measured = [place for place in places.values() if place.value is not None]
    best = min(measured, key=lambda place: (place.value or 0.0) * (1 if measure.least_is_best else -1))
    value = f"{_cell_text(best, factor, measure)} {unit}".strip()
    caption = f"Best: {value}, {best.point.full_label}."
    caption += lead_note([p.point for p in measured], measure.value, least_is_best=measure.least_is_best)
    oom = sum(place.value is None and place.point.state == "oom" for place in places.values())
    return caption + (f" {oom} of {len(places)} cells ran out of memory." if oom else "")
