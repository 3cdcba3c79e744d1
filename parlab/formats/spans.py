"""What was read from which place of a text: every number with its line, position, name and kind. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from parlab.formats import SCALARS, format_of, head_of, records
from parlab.formats.coverage.positions import Places, Span, place
from parlab.formats.exports import histories
from parlab.formats.grammar.records import Record
from parlab.formats.schema import Table

__all__ = ["Span", "spans"]

# Lines below the first one of a launch or of a table that may belong to it.
MAX_ROWS = 1_000


class Text:
    """The lines of a text, and what records take of them."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        self._places: dict[int, Places] = {}

    def place(self, record: Record) -> None:
        """Take the numbers of a record."""
        place(record, [self.at(number) for number in _lines_of(record, len(self.lines))])

    def at(self, number: int) -> Places:
        """Return the numbers of a line."""
        if number not in self._places:
            self._places[number] = Places(number, self.lines[number - 1].rstrip("\r\n"))
        return self._places[number]

    def spans(self) -> list[Span]:
        return sorted(chain.from_iterable(line.taken for line in self._places.values()))


def spans(lines: Iterable[str], format: str | None = None, *, file: str = "") -> list[Span]:
    """Return the numbers that were read from a text, or could not be, in its order.

    Lines count from 1 and characters from 0. A number that has no name and no unit has no span. The whole text is
    held: this is for a preview, and not for long logs. Raises ValueError for a format that is not in FORMATS.
    """
    text = Text(lines)
    if format is None:
        format = format_of(head_of(iter(text.lines)))
    later: list[Record] = []
    for record in histories.tagged(records(iter(text.lines), format), file if format in SCALARS else ""):
        if record.kind in ("unread", "event"):
            later.append(record)
        else:
            text.place(record)
    for record in later:
        text.place(record)
    return text.spans()


def _lines_of(record: Record, count: int) -> list[int]:
    """Return the lines in which the numbers of a record may stand."""
    if not record.line:
        return []
    is_long = isinstance(record.data, Table) or (record.kind == "launch" and record.opens)
    last = min(count, record.until + (MAX_ROWS if is_long else 0))
    return [*range(record.line, last + 1), *(number for number in record.also if 0 < number <= count)]
