"""Rows of the waterfall tables. Times and shares are rounded so that each column adds up to its last line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from parlab.advice.waterfalls.terms import TERMS
from parlab.advice.waterfalls.waterfall import NS, USEFUL, Change, Waterfall, difference, rounded
from parlab.charts.format import DIGITS, SPACE, Unit, quantity, unit_for
from parlab.charts.runs.step_bar import Part, StepBar
from parlab.charts.runs.waterfall import KINDS, Bar, Column, Delta

_DIGITS = 4
"""Significant digits of the step time; the terms have the same number of decimal places."""
_SHARE_DECIMALS = 1


class TermRow(NamedTuple):
    key: str
    title: str
    definition: str
    source: str
    time: str
    share: str
    kind: str
    basis: str


class TermTable(NamedTuple):
    title: str
    unit: str
    rows: list[TermRow]
    total: str
    absent: list[tuple[str, str]]
    """Titles of terms without a time, with the reason."""
    notes: Sequence[str]


class ChangeRow(NamedTuple):
    """A term in two waterfalls as texts."""

    title: str
    before: str
    after: str
    change: str
    share: str
    """Share of the change in the step time of the first waterfall, in percent."""


class ChangeTable(NamedTuple):
    """The difference of two waterfalls."""

    unit: str
    rows: list[ChangeRow]
    total: ChangeRow
    titles: tuple[str, str]


def _scale(total_ns: int, digits: int = _DIGITS) -> tuple[Unit, int, int]:
    """Return the unit of a step time, its decimal places, and the nanoseconds of the last place times 10^6."""
    unit = unit_for([total_ns / NS], "s")
    size = len(str(max(1, int(total_ns / NS / unit.factor))))
    decimals = max(0, digits - size)
    return unit, decimals, round(unit.factor * NS * 10**6) // 10**decimals


def _texts(values: Sequence[int], decimals: int, step: int) -> list[str]:
    """Write nanoseconds in units of `step` (10^-6 ns); the rounded numbers add up to the rounded sum."""
    total = round(sum(values) * 10**6 / step) if step else 0
    units = rounded(values, total) if sum(values) else [round(value * 10**6 / step) for value in values]
    return [_decimal(number, decimals) for number in units]


def _decimal(number: int, decimals: int) -> str:
    sign, digits = "\N{MINUS SIGN}" if number < 0 else "", str(abs(number)).rjust(decimals + 1, "0")
    return f"{sign}{digits[:-decimals]}.{digits[-decimals:]}" if decimals else f"{sign}{digits}"


def term_table(waterfall: Waterfall) -> TermTable:
    unit, decimals, step = _scale(waterfall.total_ns)
    times = _texts([part.ns for part in waterfall.parts], decimals, step)
    rows = [
        TermRow(
            part.key,
            part.title,
            TERMS[part.key].definition,
            TERMS[part.key].source,
            time,
            _decimal(percent, _SHARE_DECIMALS),
            KINDS[part.kind][0],
            part.basis,
        )
        for part, time, percent in zip(waterfall.parts, times, waterfall.percents(_SHARE_DECIMALS), strict=True)
    ]
    total = _texts([waterfall.total_ns], decimals, step)[0]
    absent = [(TERMS[key].title, reason) for key, reason in waterfall.absent]
    return TermTable(waterfall.title, unit.name, rows, total, absent, waterfall.notes)


def change_table(first: Waterfall, second: Waterfall) -> ChangeTable:
    """Return the difference of two waterfalls as a table, largest change first."""
    changes = sorted(difference(first, second), key=lambda change: -abs(change.ns))
    unit, decimals, step = _scale(max(first.total_ns, second.total_ns))
    before = _texts([change.from_ns for change in changes], decimals, step)
    after = _texts([change.to_ns for change in changes], decimals, step)
    rows = [
        ChangeRow(change.title, left, right, _signed(left, right, decimals), _percent(change, first))
        for change, left, right in zip(changes, before, after, strict=True)
    ]
    old, new = (_texts([waterfall.total_ns], decimals, step)[0] for waterfall in (first, second))
    whole = Change("unexplained", first.total_ns, second.total_ns)
    total = ChangeRow("Step", old, new, _signed(old, new, decimals), _percent(whole, first))
    return ChangeTable(unit.name, rows, total, (first.title, second.title))


def _signed(left: str, right: str, decimals: int) -> str:
    """Return the difference of two written numbers, so that each line is exact."""
    numbers = [int(text.replace("\N{MINUS SIGN}", "-").replace(".", "")) for text in (left, right)]
    change = numbers[1] - numbers[0]
    return ("+" if change > 0 else "") + _decimal(change, decimals)


def _percent(change: Change, first: Waterfall) -> str:
    units = round(100 * 10**_SHARE_DECIMALS * change.ns / first.total_ns) if first.total_ns else 0
    return ("+" if units > 0 else "") + _decimal(units, _SHARE_DECIMALS)


def bar_of(waterfall: Waterfall, caption: str) -> StepBar:
    """Return a waterfall as the data of its bar: three digits of the step, and terms that add up to it as written."""
    unit, decimals, step = _scale(waterfall.total_ns, DIGITS)
    times = _texts([part.ns for part in waterfall.parts], decimals, step)
    total = _texts([waterfall.total_ns], decimals, step)[0]
    parts = [
        Part(
            part.key,
            part.seconds,
            time,
            f"{part.title}: {quantity(part.seconds, 's')}, {100 * waterfall.share(part.key):.1f}{SPACE}%. {part.basis}",
        )
        for part, time in zip(waterfall.parts, times, strict=True)
    ]
    return StepBar(caption, waterfall.total_s, f"{total}{SPACE}{unit.name}", unit.name, parts)


def column_of(waterfall: Waterfall) -> Column:
    """Return a waterfall as the data of its figure."""
    bars = [
        Bar(part.key, part.title, part.seconds, part.kind, part.basis, part.key in USEFUL) for part in waterfall.parts
    ]
    return Column(waterfall.title, waterfall.total_s, bars)


def deltas_of(first: Waterfall, second: Waterfall) -> list[Delta]:
    """Return the difference of two waterfalls as the data of its figure."""
    return [Delta(change.title, change.from_ns / NS, change.to_ns / NS) for change in difference(first, second)]
