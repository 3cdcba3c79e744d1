"""Tables of results without markup: CSV with a row per run, columns aligned with spaces, frames of `tabulate` or Rich.

Text around the tables is read as prose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from parlab.formats.documents.blocks import Block, Text, parsed, records
from parlab.formats.documents.plain_tables import is_border, table_at
from parlab.formats.documents.tables import table
from parlab.formats.grammar.records import Record
from parlab.formats.grammar.sniff import Signs

# The shape of a whole table is needed to recognise one; see is_readable.
SIGNS: Signs = ()
_SEARCHED = 400
"""Lines in which the first table of a file begins."""


def is_readable(head: Sequence[str]) -> bool:
    """Return whether a text of no known format contains a table of results."""
    rows = [row.rstrip("\r\n") for row in islice(head, _SEARCHED)]
    return any(table_at(rows, at) is not None for at in range(len(rows)))


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a text with tables; yield a table each, and what prose states."""
    return parsed(lines, lambda text: records(_blocks(text.splitlines())))


def _blocks(rows: Sequence[str]) -> Iterator[Block]:
    at = begin = 0
    while at < len(rows):
        parts = table_at(rows, at)
        if parts is not None or not rows[at].strip():
            yield from _prose(rows, begin, at)
        if parts is None:
            begin = at + 1 if not rows[at].strip() else begin
            at += 1
            continue
        header, body, begin = parts
        yield table([header], body, line=at + 1)
        at = begin
    yield from _prose(rows, begin, at)


def _prose(rows: Sequence[str], begin: int, end: int) -> Iterator[Block]:
    """Yield the lines between two empty ones or tables as a paragraph; borders of tables are no text."""
    if begin < end:
        plain = ["" if is_border(row) else row.strip() for row in rows[begin:end]]
        yield Text(begin + 1, [f"{row}\n" for row in plain], plain)
