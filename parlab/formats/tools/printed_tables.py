"""Tables that a tool prints row by row."""

from __future__ import annotations

from collections.abc import Sequence

from parlab.formats.documents.tables import cell
from parlab.formats.grammar.records import Record, unread
from parlab.formats.schema import Table


class PrintedTable:
    """A table that is being read, up to a number of rows."""

    def __init__(self, line: int, columns: list[str], limit: int, title: str | None = None) -> None:
        self.content = Table(line=line, columns=columns, header=[columns], rows=[], title=title)
        self.rows = self.content.rows
        self.lines: list[int] = []
        self.width = len(columns)
        self.limit = limit

    def add(self, line: int, texts: Sequence[str], printed: str) -> list[Record]:
        """Add a row; return the reason if it has another width than the header, or is beyond the limit."""
        if len(texts) != self.width:
            return [unread(line, f"a row of {len(texts)} cells under a header of {self.width} columns", printed)]
        if len(self.lines) >= self.limit:
            return [unread(line, f"a table is limited to {self.limit} rows", printed)]
        self.rows.append([*map(cell, texts)])
        self.lines.append(line)
        return []

    def largest(self, word: str) -> tuple[float, int, int] | None:
        """Return the largest number in the columns with a word in their names, the place of its row and its column."""
        places = [at for at, name in enumerate(self.content.columns) if word in name]
        numbers = [
            (value, -number, -at)
            for at in places
            for number, row in enumerate(self.rows)
            if (value := row[at].value) is not None
        ]
        if not numbers:
            return None
        value, number, at = max(numbers)
        return value, -number, -at

    def records(self) -> list[Record]:
        """Return the table, if it has rows."""
        return [Record("table", self.content.line, data=self.content)] if self.lines else []
