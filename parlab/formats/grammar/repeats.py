"""Fast reading of lines that repeat a layout: the same text around other numbers.

The reader itself shows what each number of a line becomes: a layout seen in three lines is read once more with numbers
that differ from each other, and each value of the records is traced to the number that it came from. A layout whose
records cannot be explained this way, or differ from those of the reader in one of the three lines, goes to the reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from parlab.formats.grammar.prefixes import spliced
from parlab.formats.grammar.records import Field, Kind, Record
from parlab.formats.grammar.rows import picker
from parlab.formats.grammar.units import LARGEST, factors, floats, normal, to_float

Read = Callable[[int, int | None, str | None, str], list[Record]]

# Different lines from which a layout is learnt: a damaged one must not teach how the others are read.
EXAMPLES = 3
MAX_ATTEMPTS = 3
MAX_LAYOUTS = 16
MAX_SEEN = 256
# Layouts that were tried without success; a log with more of them does not repeat its lines.
MAX_FAILURES = 200
MAX_TOKENS = 80
MAX_LINE = 4_000

_TOKEN = re.compile(
    r"(?P<stamp>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    r"|(?<![\w.,+@-])[+-]?\d{1,18}(?:,\d{3}){0,5}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,3})?"
    r"|(?<=\d-)\d{1,18}(?=[a-z])"  # the end of a range: 1-50batch
)
_STAMP = r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
# Signs belong to the layout, as a reader may refuse a negative rate where it takes a positive one.
_NUMBER = r"(%s\d{1,18}(?:,\d{3}){0,5}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,3})?)"
_POSITIVE, _NEGATIVE = _NUMBER % r"\+?", _NUMBER % "-"
_TOTAL = r"(\d{1,18})"
# Factors of suffixes such as K and M, which a reader applies before the unit of the field.
_POWERS = (1.0, 1e3, 1e6, 1e9, 1e12)
_LINE, _RANK, _TIME = 987_654_321, 876_543, "\0time"
# Units of values whose record names no fields.
_UNITS = (1e-3, 1e-6, 1e-9, 60.0, 3600.0)
# Whole numbers are apart, so that none is the successor of another.
_WHOLE_FROM, _WHOLE_STEP, _REAL_FROM = 20_001, 7, 501


def by_part(start: re.Pattern[str], read: Read) -> Read:
    """Return a reader of lines that reads each part of a line that begins with `start` on its own.

    Without a line feed between them, a line has the records of several ranks.
    """

    def read_parts(line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        parts = spliced(start, text)
        if len(parts) == 1:
            return read(line, rank, time, text)
        return [record for part in parts for record in read(line, rank, time, part)]

    return read_parts


class _Value(NamedTuple):
    """A value of a record: from a token with its factors and an addend, or constant."""

    name: str
    token: int
    factors: tuple[float, ...]
    addend: float
    constant: float


class _Recipe(NamedTuple):
    """How a record follows from the tokens of a line."""

    kind: Kind
    values: tuple[_Value, ...]
    iteration: int | None
    rank: int | None
    has_rank: bool
    time: int | None
    has_time: bool
    fields: tuple[Field, ...]
    raw: tuple[tuple[str, int, str], ...]


Make = Callable[[Sequence[str], int, int | None, str | None], Record | None]


class _Layout:
    """What matches the lines of a layout, and what makes their records."""

    __slots__ = ("following", "is_stamped", "makes", "match")

    def __init__(
        self, match: Callable[[str], re.Match[str] | None], makes: tuple[Make, ...], *, is_stamped: bool
    ) -> None:
        self.match = match
        self.makes = makes
        self.is_stamped = is_stamped
        """Whether the lines have a time stamp in front of them."""
        self.following: _Layout | None = None
        """The layout of the next line, the last time."""


class _Examples(NamedTuple):
    """Different lines of a layout so far, and how often it could not be learnt."""

    texts: list[str]
    failures: int


class Repeats:
    """The layouts of one log, most recently used first. `read` must depend on nothing but its arguments."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._layouts: list[_Layout] = []
        self._last: _Layout | None = None
        self._seen: dict[str, _Examples] = {}
        self._failures = 0

    def read(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
        """Return the records of a line: by a known layout, else by the reader, from which the layout is learnt."""
        records = self.fast(line, rank, time, text)
        if records is not None:
            return records
        records = self._read(line, rank, time, text)
        if records and self._failures < MAX_FAILURES and len(text) < MAX_LINE:
            self._learn(line, rank, time, text, records)
        return records

    def fast(self, line: int, rank: int | None, time: str | None, text: str) -> list[Record] | None:
        """Return the records of a line with a known layout; None for any other line."""
        is_stamped = time is not None
        last = self._last
        # Lines of several layouts mostly come in turns.
        layout = last.following if last is not None else None
        match = layout.match(text) if layout is not None and layout.is_stamped is is_stamped else None
        if layout is None or match is None:
            for layout in self._layouts:
                if layout.is_stamped is is_stamped and (match := layout.match(text)) is not None:
                    break
            else:
                return None
            self._layouts.remove(layout)
            self._layouts.insert(0, layout)
        if last is not None:
            last.following = layout
        self._last = layout
        texts = match.groups()
        records: list[Record] = []
        for make in layout.makes:
            record = make(texts, line, rank, time)
            if record is None:
                return None
            records.append(record)
        return records

    def _learn(self, line: int, rank: int | None, time: str | None, text: str, records: list[Record]) -> None:
        tokens = list(_TOKEN.finditer(text.rstrip()))
        if not 0 < len(tokens) <= MAX_TOKENS:
            return
        shape = _shape(text.rstrip(), tokens)
        if shape not in self._seen and len(self._seen) >= MAX_SEEN:
            self._seen.clear()
        earlier, failures = self._seen.setdefault(shape, _Examples([], 0))
        if failures == MAX_ATTEMPTS or text in earlier:
            return
        if len(earlier) < EXAMPLES - 1:
            earlier.append(text)
            return
        layout = self._layout(shape, text.rstrip(), tokens, None if time is None else _TIME)
        if (
            layout is None
            or not _agrees(layout, line, rank, time, text, records)
            or not all(_agrees(layout, line, rank, time, old, self._read(line, rank, time, old)) for old in earlier)
        ):
            self._failures += 1
            self._seen[shape] = _Examples([], failures + 1)
            return
        self._layouts.insert(0, layout)
        del self._layouts[MAX_LAYOUTS:]

    def _layout(self, shape: str, text: str, tokens: list[re.Match[str]], time: str | None) -> _Layout | None:
        """Read a line with other numbers, and trace the values of its records to them."""
        texts = tuple(token[0] if token["stamp"] else _other(token[0], index) for index, token in enumerate(tokens))
        changed = _filled(text, tokens, texts)
        plain = tuple(token[0] for token in tokens)
        before = self._read(_LINE, _RANK, time, text)
        after = self._read(_LINE, _RANK, time, changed)
        if len(before) != len(after):
            return None
        recipes = [_recipe(old, new, plain, texts) for old, new in zip(before, after, strict=True)]
        if any(recipe is None for recipe in recipes):
            return None
        makes = tuple(_make(recipe) for recipe in recipes if recipe is not None)
        return _Layout(re.compile(shape + r"\s*\Z", re.ASCII).match, makes, is_stamped=time is not None)


def _agrees(layout: _Layout, line: int, rank: int | None, time: str | None, text: str, records: list[Record]) -> bool:
    match = layout.match(text)
    if match is None or len(records) != len(layout.makes):
        return False
    again = [make(match.groups(), line, rank, time) for make in layout.makes]
    return all(record is not None and same(record, other) for record, other in zip(again, records, strict=True))


def same(record: Record, other: Record) -> bool:
    """Return whether two records are equal."""
    return all(getattr(record, name) == getattr(other, name) for name in Record.__slots__) and list(
        record.values
    ) == list(other.values)


def _shape(text: str, tokens: list[re.Match[str]]) -> str:
    """Return the pattern of a line, with a group for each token."""
    parts: list[str] = []
    at = 0
    for token in tokens:
        # A whole number behind a slash is a total, which readers take for one only as a whole number.
        is_total = text[: token.start()].endswith("/") and token[0].isdecimal()
        number = _TOTAL if is_total else _NEGATIVE if token[0].startswith("-") else _POSITIVE
        parts += [re.escape(text[at : token.start()]), _STAMP if token["stamp"] else number]
        at = token.end()
    return "".join([*parts, re.escape(text[at:])])


def _filled(text: str, tokens: list[re.Match[str]], texts: tuple[str, ...]) -> str:
    parts: list[str] = []
    at = 0
    for token, other in zip(tokens, texts, strict=True):
        parts += [text[at : token.start()], other]
        at = token.end()
    return "".join([*parts, text[at:]])


def _other(text: str, index: int) -> str:
    """Return a number of the same form that no other token has; later ones are larger."""
    sign = text[0] if text[0] in "+-" else ""
    exponent = re.search(r"[eE].*", text)
    if exponent:
        return f"{sign}1.{_REAL_FROM + index}{exponent[0]}"
    if "." in text:
        return f"{sign}{_REAL_FROM + index}.5"
    if "," in text:
        return f"{sign}{30 + index},501"
    return f"{sign}{_WHOLE_FROM + _WHOLE_STEP * index}"


def _recipe(old: Record, new: Record, plain: tuple[str, ...], texts: tuple[str, ...]) -> _Recipe | None:
    """Explain a record by the tokens of its line; None if something in it has another origin."""
    if not _is_plain(old, new):
        return None
    scales = {field.name: field.scale for field in new.fields}
    values = [_value(name, old.values[name], new.values[name], scales.get(name, 1.0), texts) for name in new.values]
    raw = [_raw(before, after, plain, texts) for before, after in zip(old.raw, new.raw, strict=True)]
    place = _place(new.iteration, old.iteration, texts)
    rank = _place(new.rank, old.rank, texts) if new.rank != _RANK else None
    time = texts.index(new.time) if new.time is not None and new.time in texts else None
    known_time = new.time in (None, _TIME) or time is not None
    good = [value for value in values if value is not None]
    shown = [part for part in raw if part is not None]
    if len(good) < len(values) or len(shown) < len(raw) or place == _UNKNOWN or rank == _UNKNOWN or not known_time:
        return None
    return _Recipe(
        new.kind, tuple(good), place, rank, new.rank == _RANK, time, new.time == _TIME, new.fields, tuple(shown)
    )  # fmt: skip


def _is_plain(old: Record, new: Record) -> bool:
    """Return whether both are the same kind of record, of one line, with values only."""
    if new.kind != old.kind or new.fields != old.fields or list(new.values) != list(old.values):
        return False
    if new.kind == "unread" or new.data is not None or new.low is not None or new.opens:
        return False
    return (new.line, new.until) == (_LINE, _LINE) and len(new.raw) == len(old.raw)


_UNKNOWN = -2


def _place(new: int | None, old: int | None, texts: tuple[str, ...]) -> int | None:
    """Return the token of a whole number, None for no number, _UNKNOWN for one of another origin."""
    if new is None:
        return None if old is None else _UNKNOWN
    return next((index for index, text in enumerate(texts) if text.isdigit() and int(text) == new), _UNKNOWN)


def _value(name: str, old: float, new: float, scale: float, texts: tuple[str, ...]) -> _Value | None:
    numbers = [(index, number) for index, text in enumerate(texts) if (number := to_float(text)) is not None]
    factors: list[tuple[float, ...]] = [(scale,)] if scale != 1.0 else []
    factors += [(), *((power, scale) for power in _POWERS[1:]), *((unit,) for unit in _UNITS)]
    for steps in factors:
        for index, number in numbers:
            if _scaled(number, steps) == new:
                return _Value(name, index, steps, 0.0, 0.0)
    for index, number in numbers:
        if number + 1.0 == new:
            return _Value(name, index, (), 1.0, 0.0)
    return _Value(name, -1, (), 0.0, new) if new == old else None


def _scaled(number: float, factors: tuple[float, ...]) -> float:
    for factor in factors:
        number = normal(number, factor)
    return number


def _raw(old: str, new: str, plain: tuple[str, ...], texts: tuple[str, ...]) -> tuple[str, int, str] | None:
    """Return a printed text as a token between two constant texts."""
    for index, text in enumerate(texts):
        before, token, behind = new.partition(text)
        if token and old == before + plain[index] + behind:
            return before, index, behind
    return None


def _shown(parts: Sequence[tuple[str, int, str]]) -> Callable[[Sequence[str]], tuple[str, ...]]:
    """Return the function that makes the printed texts of a record from the tokens of its line."""
    if all(not before and not behind for before, _, behind in parts):
        return picker([token for _, token, _ in parts])
    return lambda texts: tuple([f"{before}{texts[index]}{behind}" for before, index, behind in parts])


def _make(recipe: _Recipe) -> Make:
    """Return the function that makes the record of a line from its tokens.

    It returns None if one of the tokens is not a number for the reader.
    """
    kind, values, place, speaker, has_rank, stamp, has_time, fields, parts = recipe
    names = [value.name for value in values]
    picked = picker([value.token for value in values if value.token >= 0])
    shown = _shown(parts)
    # Values are mostly shown as they are printed.
    is_same = parts == tuple(("", value.token, "") for value in values)
    constants = [(at, value.constant) for at, value in enumerate(values) if value.token < 0]
    scaled = [(at, *factors(factor)) for at, value in enumerate(values) for factor in value.factors]
    raised = [(at, value.addend) for at, value in enumerate(values) if value.addend]

    def make(texts: Sequence[str], line: int, rank: int | None, time: str | None) -> Record | None:
        own = picked(texts)
        try:
            numbers = floats(own)
            iteration = None if place is None else int(texts[place])
            own_rank = rank if has_rank else None if speaker is None else int(texts[speaker])
        except ValueError:  # grouped digits
            return _record(recipe, texts, line, rank, time)
        if not -LARGEST < sum(numbers) < LARGEST:
            return None
        if (iteration is not None and iteration < 0) or (own_rank is not None and own_rank < 0):
            return None
        for at, constant in constants:
            numbers.insert(at, constant)
        for at, multiplier, divisor in scaled:
            numbers[at] = numbers[at] * multiplier / divisor
        for at, addend in raised:
            numbers[at] += addend
        raw = own if is_same else shown(texts)
        return Record(kind, line, dict(zip(names, numbers)), iteration, own_rank,  # noqa: B905 - the hot loop
                      time if has_time else None if stamp is None else texts[stamp], fields, raw)  # fmt: skip

    return make


def _record(recipe: _Recipe, texts: Sequence[str], line: int, rank: int | None, time: str | None) -> Record | None:
    """Return the record of a line, each value converted on its own; None if one is not a number for the reader."""
    values = _each(recipe, texts)
    if values is None:
        return None
    place, speaker, stamp = recipe.iteration, recipe.rank, recipe.time
    try:
        iteration = None if place is None else int(texts[place])
        own_rank = rank if recipe.has_rank else None if speaker is None else int(texts[speaker])
    except ValueError:
        return None
    if (iteration is not None and iteration < 0) or (own_rank is not None and own_rank < 0):
        return None
    raw = tuple([f"{before}{texts[index]}{behind}" for before, index, behind in recipe.raw])
    return Record(recipe.kind, line, values, iteration, own_rank,
                  time if recipe.has_time else None if stamp is None else texts[stamp], recipe.fields, raw)  # fmt: skip


def _each(recipe: _Recipe, texts: Sequence[str]) -> dict[str, float] | None:
    values: dict[str, float] = {}
    for value in recipe.values:
        if value.token < 0:
            values[value.name] = value.constant
            continue
        number = to_float(texts[value.token])
        if number is None:
            return None
        values[value.name] = _scaled(number, value.factors) + value.addend
    return values
