"""Fast conversion of a row of texts, whose columns are known, to values in normal units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TypeVar

from parlab.formats.grammar.records import Field
from parlab.formats.grammar.units import LARGEST, factors, floats

Part = TypeVar("Part")


def picker(places: Sequence[int]) -> Callable[[Sequence[Part]], tuple[Part, ...]]:
    """Return a function that picks the parts at these places from a row."""
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        place = places[0]
        return lambda row: (row[place],)
    return lambda _: ()


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

    def named(self, numbers: list[float]) -> dict[str, float]:
        """Return the numbers of a row, which change their unit, by name."""
        for at, multiplier, divisor in self.scaled:
            numbers[at] = numbers[at] * multiplier / divisor
        return dict(zip(self.names, numbers))  # noqa: B905 - as many names as numbers, and this is a hot loop
