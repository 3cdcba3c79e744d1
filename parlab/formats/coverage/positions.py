"""Where the numbers of a record stand in the text: each printed cell, counter, rank and time stamp has its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from parlab.formats.grammar.records import Field, Record, Unread
from parlab.formats.grammar.units import NUMBER, normal, slug, to_float, to_int
from parlab.formats.schema import Kind, Table

Use = Literal["value", "step", "total", "rank", "time", "setting", "table", "event", "unread"]


class Span(NamedTuple):
    """One number of a line, from `start` to before `end`, and what it was read as.

    `name` is the normal name and `value` the number in its unit (s, bytes, FLOP/s); `key` and `unit` are as printed.
    `use` says where it went: a value of a record, the number of a step or their total, a rank, a time stamp, a setting,
    a cell of a table, an event; or `unread`, with the reason in `name`.
    """

    line: int
    start: int
    end: int
    text: str
    use: Use
    name: str = ""
    key: str = ""
    unit: str = ""
    value: float | None = None
    kind: Kind = "printed"


# A key stands at most so far from its number.
_NEAR = 60
_FACTORS = (1.0, 1e-3, 1e-6, 1e-9, 0.01, 60.0, 3600.0, 2.0**10, 2.0**20, 2.0**30, 1e3, 1e6, 1e9, 1e12, 1e15)
# Between a number and its name.
_NOT_WORDS = re.compile(r"[^A-Za-z0-9)\]]{0,24}$")
_PART_BEFORE, _PART_BEHIND = re.compile(r"\d\.?$"), re.compile(r"\.?\d")
_AT_ONCE = re.compile(r"\s?[(|]?\s?")
_TOTAL = re.compile(r"(?i)total_?(?:steps|iterations)\W{0,12}$")
_STEP = re.compile(r"(?i)(?:steps?|iter(?:ation)?s?|it|batch|updates?)\W{0,12}$")
MAX_NUMBERS = 400
# Lines without a setting between two lines with one of a launch.
MAX_BETWEEN = 30


class Places:
    """The numbers of one line, and which of them are taken."""

    def __init__(self, line: int, text: str) -> None:
        self.line = line
        self.text = text
        self.numbers = [(match.start(), match.end()) for match, _ in zip(NUMBER.finditer(text), range(MAX_NUMBERS))]  # noqa: B905
        self.taken: list[Span] = []
        self._mask = bytearray(len(text))
        """1 for each character that is taken."""
        self.at = 0
        """End of the cell that was placed last: cells mostly come in the order of the line."""

    def is_free(self, start: int, end: int) -> bool:
        return 1 not in self._mask[start:end]

    def take(self, start: int, end: int, use: Use, **more: Any) -> None:
        self.taken.append(Span(self.line, start, end, self.text[start:end], use, **more))
        self._mask[start:end] = b"\1" * (end - start)
        self.at = end

    def place_of(self, raw: str, key: str) -> tuple[int, int] | None:
        """Return the place of a printed cell: the next one behind its key, or else the next one of the line."""
        return self.beside(raw, key) or next(self._in_turn(list(self._whole(raw)), raw), None)

    def beside(self, raw: str, key: str) -> tuple[int, int] | None:
        """Return the place of a printed cell beside its key, the next one before others."""
        places = [at for at in self._whole(raw) if key and self._follows(key, at)] if key in self.text else []
        return next(self._in_turn(places, raw), None)

    def _in_turn(self, places: list[int], raw: str) -> Iterator[tuple[int, int]]:
        """Yield places, those behind the last one that was taken before others: cells come in turn."""
        return ((at, at + len(raw)) for at in sorted(places, key=lambda at: (at < self.at, at)))

    def _follows(self, key: str, at: int) -> bool:
        """Return whether a number is the first one behind a key."""
        begin = self.text.rfind(key, 0, at)
        between = self.text[begin + len(key) : at]
        return begin >= 0 and len(between) <= _NEAR and NUMBER.search(between) is None

    def _whole(self, raw: str) -> Iterator[int]:
        """Yield the free places where a text stands as a whole, and not as a part of a longer number."""
        at = self.text.find(raw)
        while at >= 0 and raw:
            before, behind = self.text[max(0, at - 2) : at], self.text[at + len(raw) : at + len(raw) + 2]
            is_part = (raw[0].isdigit() and _PART_BEFORE.search(before) is not None) or (
                raw[-1].isdigit() and _PART_BEHIND.match(behind) is not None
            )
            if not is_part and self.is_free(at, at + len(raw)):
                yield at
            at = self.text.find(raw, at + 1)

    def equal(self, value: float, name: str) -> tuple[int, int] | None:
        """Return the place of a free number that is a value in some unit; one behind its name before others."""
        places = [
            (start, end)
            for start, end in self.rest()
            if (number := to_float(self.text[start:end])) is not None
            and any(_near(normal(number, factor), value) for factor in _FACTORS)
        ]
        named = (at for at in places if slug(name) in slug(self.text[max(0, at[0] - len(name) - 12) : at[0]]))
        return next(named, places[0] if places else None)

    def whole_number(
        self, value: int, *, behind: re.Pattern[str] | None = None, sign: str = ""
    ) -> tuple[int, int] | None:
        """Return the place of a free whole number, of several the one behind a word or sign."""
        places = [(start, end) for start, end in self.rest() if to_int(self.text[start:end]) == value]
        for start, end in places:
            before = self.text[:start].rstrip()
            if (behind is not None and behind.search(before[-_NEAR:])) or (sign and before.endswith(sign)):
                return start, end
        return places[0] if places and not sign else None

    def is_left(self, key: str, raw: str) -> bool:
        """Return whether a number stands free beside its key."""
        return any(self._is_beside(key, at, at + len(raw)) for at in self._whole(raw))

    def _is_beside(self, key: str, start: int, end: int) -> bool:
        behind = _AT_ONCE.match(self.text, end)
        if behind is not None and self.text.startswith(key, behind.end()):
            return True
        before = _NOT_WORDS.sub("", self.text[max(0, start - _NEAR) : start])
        return " ".join(before.split()).endswith(key)

    def rest(self) -> Iterator[tuple[int, int]]:
        """Yield the numbers that nothing has taken."""
        return ((start, end) for start, end in self.numbers if self.is_free(start, end))


def _near(value: float, other: float) -> bool:
    return value == other or abs(value - other) <= 1e-9 * abs(other)


def place(record: Record, lines: Sequence[Places]) -> None:
    """Take the numbers of a record in its lines."""
    if isinstance(record.data, Unread):
        for line in lines:
            _unread(record.data, line)
        return
    if record.kind in ("event", "end"):
        for line in lines:
            for start, end in list(line.rest()):
                line.take(start, end, "event", name="end" if record.kind == "end" else record.data)
        return
    if isinstance(record.data, Table):
        _table(record.data, lines)
        return
    if record.kind == "launch" and isinstance(record.data, dict):
        _settings(record.data, lines, record.until)
        return
    named: set[str] = set()
    for field, raw in zip(record.fields, record.raw, strict=False):
        named.add(field.name)
        if field.kind != "derived":
            _cell(field, raw, record, lines)
    for line in lines:
        _heads(record, line)
    for name, value in {**(record.low or {}), **record.values}.items():
        if name not in named and name not in _OF_STEP:
            _value(name, value, lines)


_OF_STEP = frozenset({"total_iterations", "in_epoch"})


def _cell(field: Field, raw: str, record: Record, lines: Sequence[Places]) -> None:
    value = record.values.get(field.name)
    more: dict[str, Any] = {
        "name": field.name,
        "key": field.key,
        "unit": field.unit,
        "value": value,
        "kind": field.kind,
    }
    for find in (Places.beside, Places.place_of, None):
        for line in lines:
            # `1.90` of a dictionary is 1.9
            placed = find(line, raw, field.key) if find else line.equal(value, field.key) if value is not None else None
            if placed is not None:
                line.take(*placed, "value", **more)
                return


def _value(name: str, value: float, lines: Sequence[Places]) -> None:
    for line in lines:
        if (placed := line.equal(value, name)) is not None:
            line.take(*placed, "value", name=name, key=name, value=value)
            return


def _heads(record: Record, line: Places) -> None:
    """Take the counter, its total, the rank and the time stamp."""
    if record.iteration is not None and not any(span.use == "step" for span in line.taken):
        for number in (record.iteration, record.iteration + 1, record.iteration - 1):
            if (placed := line.whole_number(number, behind=_STEP)) is not None:
                line.take(*placed, "step", name="step", value=float(record.iteration))
                break
    total = record.values.get("total_iterations")
    if total is not None and (placed := line.whole_number(int(total), behind=_TOTAL, sign="/")) is not None:
        line.take(*placed, "total", name="total_iterations", value=total)
    if record.time and (at := line.text.find(record.time)) >= 0 and line.is_free(at, at + len(record.time)):
        line.take(at, at + len(record.time), "time", name="time")
    tag = _RANK.search(line.text)
    if record.rank is not None and tag is not None and int(tag[1]) == record.rank and line.is_free(*tag.span(1)):
        line.take(*tag.span(1), "rank", name="rank", value=float(record.rank))


_RANK = re.compile(r"(?i)(?:\[default|rank\W{0,4}|^\s{0,4})(\d{1,6})(?=[\]:)\s,])")


def _unread(data: Unread, line: Places) -> None:
    """Take the free numbers of a text that could not be read, or of the whole line if it is not in it as it stands."""
    begin = line.text.find(data.text) if data.text else -1
    key, _, printed = data.text.rpartition(": " if ": " in data.text else "=")
    if key and NUMBER.search(printed) is None and (placed := line.place_of(printed, key)) is not None:
        line.take(*placed, "unread", name=data.reason, key=key)
        return
    first, last = (0, len(line.text)) if begin < 0 else (begin, begin + len(data.text))
    for start, end in list(line.rest()):
        if first <= start and end <= last:
            line.take(start, end, "unread", name=data.reason)


def _settings(data: Mapping[str, Any], lines: Sequence[Places], last: int) -> None:
    """Take the numbers of settings, which stand behind their names."""
    without = 0
    for line in lines:
        line.at, before, is_own = 0, len(line.taken), line.line <= last
        for name, value in data.items():
            if isinstance(value, bool) or not isinstance(value, int | float | str | list) or not value:
                continue
            raw = str(value)
            find = line.place_of if is_own else line.beside
            placed = find(raw, name) if any(map(str.isdigit, raw)) else None
            if placed is None and is_own and isinstance(value, int):
                placed = line.whole_number(value)  # `491,520`
            if placed is not None:
                line.take(*placed, "setting", name=name, key=name)
        without = 0 if len(line.taken) > before else without + 1
        if without > MAX_BETWEEN:
            return


def _table(table: Table, lines: Sequence[Places]) -> None:
    """Take the cells of a table, row by row; a row may be several lines below the row before it."""
    row = 0
    for line in lines:
        if row == len(table.rows):
            return
        is_row = False
        for column, cell in zip(table.columns, table.rows[row], strict=False):
            if cell.kind == "number" and (placed := line.place_of(cell.text, "")) is not None:
                line.take(*placed, "table", name=column, key=column, unit=cell.unit, value=cell.value)
                is_row = True
        row += is_row
