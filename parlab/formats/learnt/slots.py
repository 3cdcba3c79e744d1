"""The numbers of a line of any trainer, each with a key: its own, the heading of its column, or the words before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from parlab.formats.grammar.counters import counter_in
from parlab.formats.grammar.pairs import MAX_PAIRS, MAX_TEXT, Pair, named_behind, pairs_and_rest
from parlab.formats.grammar.rates import PATTERN
from parlab.formats.grammar.units import UNITS, to_float

MAX_HEADINGS = 100
# A number that stands alone: no part of a word, a path, an address, a clock time or a date.
_NUMBER = re.compile(
    r"(?<![\w./:%,-])[+-]?(?:\d{1,3}(?:,\d{3}){1,6}(?![\d,])(?:\.\d{0,40})?"
    r"|\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][+-]?\d{1,4})?(?![\w.:-]*\d)"
)
_UNITS = "|".join([PATTERN, *sorted(map(re.escape, UNITS), key=len, reverse=True)])
_UNIT = re.compile(rf"\s?({_UNITS})(?![\w/%])", re.IGNORECASE)
_WORDS = re.compile(r"[A-Za-z][\w./@-]{0,40}")
_SEPARATORS = (",", ";", "\t", "|")
# Words between a key and its number that name nothing.
_EMPTY = frozenset(
    {"in", "at", "of", "is", "was", "took", "to", "the", "a", "an", "for", "with", "and", "done", "after"}
)


# The process that prints a line: `worker-0`, `[rank 3]`, `@1`.
_SPEAKER = re.compile(
    r"(?i)^[^a-z]{0,40}?(?:\b(rank|worker|process|proc|gpu|device)[-_#]|(?<!\w)(@))(\d{1,4})(?![\w.:-])"
)

# A number as it may stand in a cell; digits within words and versions belong to the words.
_MASKED = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d*)?(?:[eE][+-]?\d+)?")
MAX_PLANS = 2_000


class _Planned(NamedTuple):
    """A slot of all lines with the same words: which of their numbers it is."""

    number: int
    key: str
    unit: str


class Slots:
    """Reads the numbers of lines, one line after the other: the columns of a table keep their headings.

    Lines that differ only in their numbers are read with the plan of the first of them.
    """

    def __init__(self) -> None:
        self._headings: list[str] = []
        self._separator: str | None = None
        self._plans: dict[str, list[_Planned] | None] = {}

    def of(self, text: str) -> list[Pair]:
        """Return the numbers of a line as cells."""
        text = text[:MAX_TEXT]
        if self._headings and (row := self._row(text)) is not None:
            return row
        numbers = _MASKED.findall(text)
        masked = _MASKED.sub("0", text)
        if masked in self._plans:
            plan = self._plans[masked]
            if plan is not None:
                return [
                    Pair(slot.key, numbers[slot.number], slot.unit, to_float(numbers[slot.number])) for slot in plan
                ]
            return _cells(text)
        cells = _cells(text)
        if not cells and self._heads(text):
            return []
        if len(self._plans) < MAX_PLANS:
            self._plans[masked] = _plan(text, numbers, cells)
        return cells

    def is_row(self, text: str) -> bool:
        """Return whether a line has as many parts as the table above it has columns."""
        return bool(self._headings) and len(_parts(text[:MAX_TEXT], self._separator)) == len(self._headings)

    def _heads(self, text: str) -> bool:
        """Take a line of at least two words without a number as the headings of a table."""
        separator = next((mark for mark in _SEPARATORS if text.count(mark) > 1), None)
        headings = _parts(text, separator)
        if not 2 <= len(headings) <= MAX_HEADINGS or len(set(headings)) < len(headings):
            return False
        if not all(_WORDS.match(heading) and len(heading) <= 80 for heading in headings):
            return False
        if self._separator is not None and separator is None:
            return False  # a message between the rows of a table with separators
        self._headings, self._separator = headings, separator
        return True

    def _row(self, text: str) -> list[Pair] | None:
        """Read a row of the table; None for another line."""
        parts = _parts(text, self._separator)
        if len(parts) != len(self._headings):
            return None
        values = [(heading, part, to_float(part)) for heading, part in zip(self._headings, parts, strict=True)]
        cells = [Pair(heading, part, "", value) for heading, part, value in values if value is not None]
        # Without separators, words and numbers may as well be a sentence.
        least = len(parts) if self._separator is None else len(parts) / 2
        return cells if len(cells) >= least else None


def _cells(text: str) -> list[Pair]:
    counter = counter_in(text[:200])
    if counter is not None and not text[: counter.match.start()].strip():
        # `3 7.34 s run, 11.87 loss`: values in front of their names, behind the number of the step.
        behind, _ = named_behind(text[counter.match.end() :].lstrip(" |:-"))
        if behind:
            return behind
    speaker = _SPEAKER.match(text[:80])
    tag = [] if speaker is None else [Pair((speaker[1] or "rank").lower(), speaker[3], "", float(speaker[3]))]
    if speaker is not None:
        text = f"{text[: speaker.start(3)]}|{text[speaker.end(3) :]}"
    cells, rest = pairs_and_rest(text)
    cells = [cell for cell in cells if not tag or cell.key != tag[0].key]
    return tag + cells + _bare(rest, {cell.key for cell in tag + cells})


def _plan(text: str, numbers: Sequence[str], cells: Sequence[Pair]) -> list[_Planned] | None:
    """Find which number each cell is, by reading the line again with a different number in each place."""
    probes = [f"{place + 1001}{'.5' if '.' in number else ''}" for place, number in enumerate(numbers)]
    remaining = iter(probes)
    probed = _cells(_MASKED.sub(lambda _: next(remaining), text))
    places = {probe: place for place, probe in enumerate(probes)}
    if [(cell.key, cell.unit) for cell in probed] != [(cell.key, cell.unit) for cell in cells]:
        return None
    if any(cell.text not in places for cell in probed):
        return None
    plan = [_Planned(places[cell.text], cell.key, cell.unit) for cell in probed]
    is_same = all(numbers[slot.number] == cell.text for slot, cell in zip(plan, cells, strict=True))
    return plan if is_same else None


def _parts(text: str, separator: str | None) -> list[str]:
    parts = [part.strip().strip("\"'") for part in (text.split(separator, MAX_HEADINGS + 1))]
    while separator == "|" and parts and not parts[-1]:
        parts.pop()
    return parts[1:] if separator == "|" and parts and not parts[0] else parts


def _bare(text: str, taken: set[str]) -> list[Pair]:
    """Return the numbers without a key of their own, named by the words before them, else by their place."""
    cells: list[Pair] = []
    end = 0
    for match in _NUMBER.finditer(text):
        if len(cells) >= MAX_PAIRS:
            break
        unit = _unit_after(text, match.end())
        phrase = _WORDS.findall(text[max(end, match.start() - 80) : match.start()].rpartition("|")[2])
        end = match.end() + len(unit) + 1 if unit else match.end()
        key = _new_key(" ".join(_named(phrase)) or "value", taken)
        cells.append(Pair(key, match[0], unit, to_float(match[0])))
    return cells


def _unit_after(text: str, at: int) -> str:
    match = _UNIT.match(text, at)
    return match[1] if match else ""


def _named(phrase: Sequence[str]) -> Sequence[str]:
    """Return the last words that name something: `finished update` of `finished update 17`, `update` of `update in`."""
    named = list(phrase)
    while named and named[-1].lower() in _EMPTY:
        named.pop()
    return named[-2:]


def _new_key(key: str, taken: set[str]) -> str:
    name, count = key, 1
    while name in taken:
        count += 1
        name = f"{key} {count}"
    taken.add(name)
    return name
