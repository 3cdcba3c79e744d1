"""A number of one run among those of its experiment: a bar each from zero, its own in full colour."""

from __future__ import annotations

from html import escape

from parlab.charts.format import exact_quantity, in_column
from parlab.charts.svg import Svg, length, ticks

from .frame import ROW, Rows, Runs, Size, rows_of, text_at
from .shown import ShownRun

MAX_BARS = 12


def bars(runs: Runs, own: int, width: float) -> Svg:
    """Draw the best runs and run `own`, the best first."""
    shown = _nearest(runs, own)
    values = {run.number: runs.measure.value(run.point) or 0.0 for run in shown}
    top = max(values.values()) / runs.unit.factor
    rows = rows_of(shown, Size(width, ROW * len(shown) + 28), (0.0, top or 1.0), right=52)
    rows.canvas.x_axis(ticks(0, top or 1.0, 4), lambda value: f"{value:g}", has_grid=True)
    for place, run in enumerate(shown):
        rows.canvas.add(_bar(rows, run, place, values[run.number], runs, is_own=run.number == own))
    return rows.canvas.svg(f"{runs.measure.title} of {len(shown)} runs")


def _nearest(runs: Runs, own: int) -> list[ShownRun]:
    """Return the measured runs, the best first; of many the first ones and the own."""
    sign = 1 if runs.measure.least_is_best else -1
    ordered = sorted(runs.measured, key=lambda run: (sign * (runs.measure.value(run.point) or 0.0), run.number))
    first = ordered[:MAX_BARS]
    if all(run.number != own for run in first):
        first[-1:] = [run for run in ordered if run.number == own]
    return first


def _bar(rows: Rows, run: ShownRun, place: int, value: float, runs: Runs, *, is_own: bool) -> str:
    top, end = rows.top(place), rows.canvas.x(value / runs.unit.factor)
    name = rows.names[run.number]
    kind = "b" if is_own else "v"
    opacity = "" if is_own else ' opacity=".35"'
    title = f"{run.name}: {exact_quantity(value, runs.measure.unit)}"
    return (
        text_at(rows.left - 8, top + 3.5, name, kind, "end", run.name)
        + f'<rect class="{run.look.fill}"{opacity} x="{length(rows.left)}" y="{length(top - 6)}"'
        f' width="{length(max(1.0, end - rows.left))}" height="12"><title>{escape(title)}</title></rect>'
        + text_at(end + 5, top + 3.5, in_column(value, runs.unit), kind)
    )
