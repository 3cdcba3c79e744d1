"""Fast conversion of a row of texts, whose columns are known, to values in normal units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeVar

from parlab.formats.grammar.records import Field, Record, unread
from parlab.formats.grammar.units import LARGEST, factors, floats, normal, to_float

Part = TypeVar("Part")


def picker(places: Sequence[int]) -> Callable[[Sequence[Part]], tuple[Part, ...]]:
    """Return a function that picks the parts at these places from a row."""
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        place = places[0]
        return lambda row: (row[place],)
    return lambda _: ()


class Parts(NamedTuple):
    """The numbers of a row by name, their fields and printed texts, and what was no number."""

    values: dict[str, float]
    fields: tuple[Field, ...]
    raw: tuple[str, ...]
    bad: Sequence[Record] = ()


NOTHING = Parts({}, (), ())


def parts_of(numbers: Sequence[tuple[Field, str, float]], bad: Sequence[Record] = ()) -> Parts:
    """Return the parts of a row: field, printed text and number of each cell."""
    values = {field.name: normal(number, field.scale) for field, _, number in numbers}
    return Parts(values, tuple([field for field, _, _ in numbers]), tuple([text for _, text, _ in numbers]), bad)


class Columns:
    """Columns of numbers: their places in a row, and their fields."""

    def __init__(self, places: Sequence[int], fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self.names = [field.name for field in fields]
        self.pick = picker(places)
        self.scaled = [(at, *factors(field.scale)) for at, field in enumerate(fields) if field.scale != 1.0]

    def read(self, texts: Sequence[str]) -> tuple[dict[str, float], tuple[str, ...]] | None:
        """Return values by name and printed texts; None if a text may not be a plain finite number."""
        raw = self.pick(texts)
        try:
            numbers = floats(raw)
        except ValueError:
            return None
        if not -LARGEST < sum(numbers) < LARGEST:
            return None
        return self.named(numbers), raw

    def parts(self, line: int, texts: Sequence[str]) -> Parts:
        """Return the numbers of a row that are filled, and a record for each text that is no number."""
        if not self.fields:
            return NOTHING
        read = self.read(texts)
        if read is not None:
            return Parts(read[0], self.fields, read[1])
        numbers: list[tuple[Field, str, float]] = []
        bad: list[Record] = []
        for field, text in zip(self.fields, self.pick(texts), strict=True):
            if not text or text.isspace():
                continue
            number = to_float(text)
            if number is None:
                bad.append(unread(line, "not a finite number", f"{field.key}: {text}"))
            else:
                numbers.append((field, text, number))
        return parts_of(numbers, bad)

    def named(self, numbers: list[float]) -> dict[str, float]:
        """Return the numbers of a row, which change their unit, by name."""
        for at, multiplier, divisor in self.scaled:
            numbers[at] = numbers[at] * multiplier / divisor
        return dict(zip(self.names, numbers))  # noqa: B905 - as many names as numbers, and this is a hot loop


def sides(columns: Iterable[tuple[int, Field, bool]]) -> tuple[Columns, Columns]:
    """Return the columns of the training, and those of held-out data: place, field, and whether it is of the latter."""
    own: list[tuple[int, Field]] = []
    held_out: list[tuple[int, Field]] = []
    for at, field, is_held_out in columns:
        (held_out if is_held_out else own).append((at, field))
    first, second = (Columns([at for at, _ in side], [field for _, field in side]) for side in (own, held_out))
    return first, second
