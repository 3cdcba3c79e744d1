"""What was read from which place of a text: every number with its line, position, name and kind. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from parlab.formats import SCALARS, format_of, head_of, records
from parlab.formats.exports import histories
from parlab.formats.grammar.records import Record
from parlab.formats.grammar.spans import Places, Span, place
from parlab.formats.schema import Table

__all__ = ["Span", "spans"]

# Lines below the first one of a launch or of a table that may belong to it.
MAX_ROWS = 1_000


def spans(lines: Iterable[str], format: str | None = None, *, file: str = "") -> list[Span]:
    """Return the numbers that were read from a text, or could not be, in its order.

    Lines count from 1 and characters from 0. A number that has no name and no unit has no span. The whole text is
    held: this is for a preview, and not for long logs. Raises ValueError for a format that is not in FORMATS.
    """
    texts = list(lines)
    if format is None:
        format = format_of(head_of(iter(texts)))
    places: dict[int, Places] = {}
    unread: list[Record] = []
    for record in histories.tagged(records(iter(texts), format), file if format in SCALARS else ""):
        own = [_place_in(places, texts, number) for number in _lines_of(record, len(texts))]
        if record.kind == "unread":
            unread.append(record)
        else:
            place(record, own)
    for record in unread:
        place(record, [_place_in(places, texts, number) for number in _lines_of(record, len(texts))])
    return sorted(chain.from_iterable(line.taken for line in places.values()))


def _place_in(places: dict[int, Places], texts: list[str], number: int) -> Places:
    if number not in places:
        places[number] = Places(number, texts[number - 1].rstrip("\r\n"))
    return places[number]


def _lines_of(record: Record, count: int) -> range:
    """Return the lines in which the numbers of a record may stand."""
    if not record.line:
        return range(0)
    is_long = isinstance(record.data, Table) or (record.kind == "launch" and record.opens)
    return range(record.line, min(count, record.until + (MAX_ROWS if is_long else 0)) + 1)
