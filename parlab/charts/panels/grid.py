"""A sweep as a map of coloured cells: two fields as rows and columns, a run in each cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from parlab.charts.format import DASH, exact_quantity, in_column
from parlab.charts.points import Spread, in_order, is_number
from parlab.charts.svg import Canvas, Margins, Svg, length, text_px

from .frame import Runs, Size, run_group, shortened, text_at
from .shown import ShownRun

MAX_CELLS_ACROSS, MAX_CELLS_DOWN = 16, 24
_SHADES = 6
_WITH_RANGE = (58, 34)
"""Width and height of a cell that has room for the range below the number."""
_WITH_NUMBER, _LEAST_HEIGHT = 24, 14


class Layout(NamedTuple):
    """Which field is the column, and the texts of rows and columns."""

    column: str
    columns: list[Any]
    rows: list[tuple[str, ...]]
    names: Mapping[tuple[str, ...], str]
    cells: Mapping[tuple[tuple[str, ...], str], Sequence[ShownRun]]


def layout_of(runs: Runs) -> Layout | None:
    """Choose rows and columns; None for runs that do not differ in two fields, or in too many ways."""
    placed = [run for run in runs.shown if all(field in run.values for field in runs.fields)]
    placed.sort(key=lambda run: run.number)  # texts stand as they were swept, not by speed
    fields = [field for field in runs.fields if len({repr(run.values[field]) for run in placed}) > 1]
    if len(fields) < 2:
        return None
    numeric = [field for field in fields if all(is_number(run.values[field]) for run in placed)]
    column = numeric[-1] if numeric else fields[-1]
    others = [field for field in fields if field != column]
    cells: dict[tuple[tuple[str, ...], str], list[ShownRun]] = {}
    names: dict[tuple[str, ...], str] = {}
    for run in placed:
        row = tuple(repr(run.values[field]) for field in others)
        names[row] = " \N{MIDDLE DOT} ".join(run.texts[field] for field in others)
        cells.setdefault((row, repr(run.values[column])), []).append(run)
    columns = in_order(run.values[column] for run in placed)
    rows = _sorted_rows(list(names), others, placed)
    return Layout(column, columns, rows, names, cells) if _is_grid(len(rows), len(columns), len(placed)) else None


def _sorted_rows(
    rows: Sequence[tuple[str, ...]], fields: Sequence[str], runs: Sequence[ShownRun]
) -> list[tuple[str, ...]]:
    """Sort rows by their fields, numbers in ascending order."""
    values = {field: in_order(run.values[field] for run in runs) for field in fields}
    order = {field: {repr(value): at for at, value in enumerate(values[field])} for field in fields}
    return sorted(rows, key=lambda row: [order[field][part] for field, part in zip(fields, row, strict=True)])


def _is_grid(down: int, across: int, runs: int) -> bool:
    """Whether a table of this size is one: neither a line, nor too large to read, nor mostly empty."""
    return 2 <= across <= MAX_CELLS_ACROSS and 2 <= down <= MAX_CELLS_DOWN and down * across <= 3 * runs


def needs(runs: Runs) -> str:
    """Return why there is nothing to draw; empty where there is."""
    if not runs.measured:
        return "no run has a speed"
    return "" if layout_of(runs) else "needs a sweep of two fields"


def draw(runs: Runs, size: Size) -> Svg:
    layout = layout_of(runs)
    assert layout is not None
    left = min(max(map(text_px, layout.names.values())) + 14, size.width * 0.4)
    across = (size.width - left - 2) / len(layout.columns)
    down = (size.height - 24) / len(layout.rows)
    canvas = Canvas(size.width, size.height, margins=Margins(left, 2, 0, 24))
    best = next((run for run in runs.shown if runs.measure.value(run.point) is not None), None)
    shades = _Shades(runs)
    for at, row in enumerate(layout.rows):
        canvas.text(left - 9, (at + 0.5) * down + 3.5, shortened(layout.names[row], left - 9), "end", "v")
        for place, value in enumerate(layout.columns):
            own = layout.cells.get((row, repr(value)), ())
            cell = _Cell(left + place * across + 1, at * down + 1, across - 2, down - 2)
            canvas.add(_cell(runs, own, cell, shades, best))
    for place, value in enumerate(layout.columns):
        text = next(run.texts[layout.column] for run in runs.shown if run.values.get(layout.column) == value)
        canvas.text(left + (place + 0.5) * across, size.height - 8, shortened(text, across - 2), "middle")
    return canvas.svg(f"{runs.measure.title} of {len(runs.shown)} points of the sweep")


class _Cell(NamedTuple):
    left: float
    top: float
    width: float
    height: float

    @property
    def place(self) -> str:
        corner = f'x="{length(self.left)}" y="{length(self.top)}"'
        return f'{corner} width="{length(self.width)}" height="{length(self.height)}" rx="3"'

    @property
    def middle(self) -> tuple[float, float]:
        return self.left + self.width / 2, self.top + self.height / 2

    @property
    def has_range(self) -> bool:
        """Whether the range of a value fits below it."""
        return self.width >= _WITH_RANGE[0] and self.height >= _WITH_RANGE[1]


class _Shades:
    """The shade of a value: the best is the darkest."""

    def __init__(self, runs: Runs) -> None:
        values = [value for run in runs.measured if (value := runs.measure.value(run.point)) is not None]
        self.low, self.high = min(values), max(values)
        self.is_least_best = runs.measure.least_is_best

    def of(self, value: float) -> int:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return min(_SHADES - 1, int(_SHADES * (1 - share if self.is_least_best else share)))


def _cell(runs: Runs, own: Sequence[ShownRun], cell: _Cell, shades: _Shades, best: ShownRun | None) -> str:
    if not own:
        return f'<rect class="none" {cell.place}/>'
    run = own[0]
    spread = runs.spread(run)
    if spread is None:
        return run_group(run, _unmeasured(run, cell), "cell")
    shade = shades.of(spread.median)
    title = f"<title>{escape(run.name)}: {exact_quantity(spread.median, runs.measure.unit)}</title>"
    markup = f'<rect class="q{shade}" {cell.place}>{title}</rect>'
    if run is best:
        inner = _Cell(cell.left + 1.5, cell.top + 1.5, cell.width - 3, cell.height - 3)
        markup += f'<rect class="best" {inner.place}/>'
    return run_group(run, markup + _numbers(runs, spread, cell, shade), "cell")


def _unmeasured(run: ShownRun, cell: _Cell) -> str:
    """Return a cell without a number: out of memory, or on its way."""
    state = run.point.state
    text = {"oom": "OOM", "finished": DASH}.get(state, state)
    x, y = cell.middle
    frame = f'<rect class="none" {cell.place}><title>{escape(run.name)}: {escape(state)}</title></rect>'
    return frame + text_at(x, y + 3.5, shortened(text, cell.width), "warn" if state == "oom" else "", "middle")


def _numbers(runs: Runs, spread: Spread, cell: _Cell, shade: int) -> str:
    """Return the value of a cell, and its range where there is room."""
    x, y = cell.middle
    markup, has_range = "", spread.p10 is not None and spread.p90 is not None and cell.has_range
    number = in_column(spread.median, runs.unit)
    if cell.width >= _WITH_NUMBER and cell.height >= _LEAST_HEIGHT:
        kind = "hv" if len(number) * 9 <= cell.width and cell.height >= _WITH_NUMBER else "hs"
        markup += text_at(x, y + (0 if has_range else 5), number, f"{kind} hv{shade}", "middle")
    if has_range:
        low, high = (_rounded((value or 0.0) / runs.unit.factor) for value in (spread.p10, spread.p90))
        markup += text_at(x, y + 14, f"{low}{DASH}{high}", f"hn hv{shade}", "middle")
    return markup


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 20 else f"{value:.2g}"
