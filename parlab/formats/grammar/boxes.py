"""Boxes that state the number of their step in a row: `| iterations | 7 |`, as the loggers of Stable-Baselines draw."""

from __future__ import annotations

from parlab.formats.grammar.pairs import Pair
from parlab.formats.grammar.records import Record
from parlab.formats.grammar.stepcells import StepCells
from parlab.formats.grammar.units import to_float

MAX_ROWS = 200
LEAST_FRAME = 10
COUNTERS = ("iterations", "nupdates", "n_updates", "total_timesteps", "step", "global_step")
"""The rows that count, the first of them first."""


class Boxes:
    """Collects the rows of a box until the frame below it."""

    def __init__(self, records_of: StepCells) -> None:
        self.records_of = records_of
        self.line = 0
        self.rows: dict[str, str] = {}

    def feed(self, line: int, text: str) -> list[Record] | None:
        """Read a row of a box, or the frame below it, which returns its step; None for any other line."""
        text = text.strip()
        if self.rows and len(text) >= LEAST_FRAME and not text.strip("-=+"):
            return self._close(line)
        parts = [part.strip() for part in text.strip("|").split("|")] if text[:1] == text[-1:] == "|" else []
        if len(parts) != 2 or not parts[0] or len(self.rows) >= MAX_ROWS:
            self.rows = {}
            return None
        self.line = line if not self.rows else self.line
        self.rows[parts[0]] = parts[1]
        return []

    def _close(self, line: int) -> list[Record]:
        rows, self.rows = self.rows, {}
        counter = next((name for name in COUNTERS if name in rows), None)
        count = to_float(rows.pop(counter).replace(",", "")) if counter is not None else None
        if count is None or not 0 <= count < 2**53 or not count.is_integer():
            return []
        iteration = int(count)
        # The head of a group of rows has no value.
        cells = [Pair(name, text, "", to_float(text)) for name, text in rows.items() if text]
        records = self.records_of.records(self.line, None, None, cells, iteration, None)
        for record in records:
            record.until = line
        return records
