"""A run as the panels of its experiment show it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.format import Unit, for_column, unit_for
from parlab.charts.measures import Measure
from parlab.charts.points import RunPoint, Spread
from parlab.charts.svg import Canvas, Look, Margins, Svg, marker

WHISKER = (52, 16)


class ShownRun(NamedTuple):
    """A run with what tells it apart, and its numbers."""

    point: RunPoint
    name: str
    look: Look
    group: str
    """The value that sets the colour, as text."""
    values: Mapping[str, Any]
    """The fields that differ, with the values of this run."""
    texts: Mapping[str, str]
    """These fields in few words: `mb 4`."""
    steps: Sequence[float] = ()
    """Durations of steps in seconds, warm-up left out."""

    @property
    def number(self) -> int:
        return self.point.number


def spread_of(run: ShownRun, measure: Measure) -> Spread | None:
    """Return a number of a run with the range that follows from its step times; None if it is not measured."""
    value = measure.value(run.point)
    if value is None:
        return None
    times = run.point.step_time_s
    if times is None or measure.kind == "other":
        return Spread(value)
    return times.of(value, is_time=measure.kind == "time")


def unit_of(runs: Sequence[ShownRun], measure: Measure) -> Unit:
    """Return the unit and the decimal places of a number of these runs."""
    values = [(measure.value(run.point), run.point.is_printed and measure.is_stated) for run in runs]
    unit = (
        Unit(1.0, measure.unit, measure.unit) if measure.is_as_it_is else unit_for((v for v, _ in values), measure.unit)
    )
    column = for_column(unit, values)
    if column.decimals is None:
        return column
    # A list and a figure compare: five digits of the largest number tell runs apart, and the pointer shows all.
    largest = max((abs(value) / unit.factor for value, _ in values if value), default=1.0)
    most = max(0, min(3, 4 - math.floor(math.log10(largest))))
    return column._replace(decimals=min(column.decimals, most))


def ends(spreads: Sequence[Spread | None]) -> tuple[float, float]:
    """Return the smallest and the largest value of spreads."""
    values = [at for spread in spreads if spread for at in spread if at is not None]
    return (min(values), max(values)) if values else (0.0, 1.0)


def whisker(spread: Spread | None, scale: tuple[float, float], look: Look) -> Svg:
    """Draw a value and its range on a common scale, for a row of a list."""
    canvas = Canvas(*WHISKER, scale, margins=Margins(5, 5, 0, 0))
    canvas.add('<path class="gl" d="M2 8.5H50"/>')
    if spread is not None:
        if spread.p10 is not None and spread.p90 is not None:
            canvas.whisker(spread.p10, spread.p90, 8, look)
        canvas.add(marker(canvas.x(spread.median), 8, look, 3))
    return Svg(canvas.svg("", "whisker").replace('role="img" aria-label=""', 'aria-hidden="true"'))
