"""W&B's table of runs as CSV: a row per run, with its settings and the last value of each metric.

Source: the export of the runs table of wandb.ai. The first columns are Name, State and others of W&B; the rest are
settings and metrics, which only their names tell apart. A row is a launch with figures, no step.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from parlab.formats.grammar.metric_fields import HELD_OUT, metric_field
from parlab.formats.grammar.names import launch_of, setting_of
from parlab.formats.grammar.quantities import quantity_of_metric
from parlab.formats.grammar.records import Ending, Field, Record, unread
from parlab.formats.grammar.rows import picker, sides
from parlab.formats.grammar.sniff import Signs
from parlab.formats.launch import typed

SIGNS: Signs = ((re.compile(r'^\ufeff?"?Name"?,"?State"?,(?=.*(?:Runtime|Created|User|ID))'), 60),)

MAX_COLUMNS = 2_000
# A note may contain line feeds.
MAX_ROW_LINES = 200
_STATES: dict[str, tuple[Literal["finished", "cancelled", "crashed", "unknown"], str]] = {
    "finished": ("finished", "state finished"),
    "crashed": ("crashed", "state crashed"),
    "failed": ("crashed", "state failed"),
    "killed": ("cancelled", "state killed"),
}
_COUNTERS = frozenset({"_step", "_timestamp", "_wandb", "epoch", "step", "global_step"})


class Column(NamedTuple):
    """A column: its name, the field of a metric, and whether it is measured on held-out data or a known setting."""

    name: str
    field: Field | None
    is_held_out: bool
    is_setting: bool


def rows_of(lines: Iterable[str]) -> Iterator[tuple[int, int, list[str] | None]]:
    """Yield (first line, last line, cells) of each row; cells are None if its quotes are damaged."""
    parts: list[str] = []
    quotes = last = 0
    for last, line in enumerate(lines, 1):
        parts.append(line)
        quotes += line.count('"')
        if quotes % 2 and len(parts) < MAX_ROW_LINES:
            continue
        yield last - len(parts) + 1, last, _cells("".join(parts))
        parts, quotes = [], 0
    if parts:
        yield last - len(parts) + 1, last, _cells("".join(parts))


def _cells(text: str) -> list[str] | None:
    plain = text.rstrip("\r\n")
    # The usual row has a quote around each cell, and none within one.
    if plain[:1] == plain[-1:] == '"' and plain.count('"') == 2 * (plain.count('","') + 1) and "\0" not in plain:
        return plain[1:-1].split('","')
    try:
        rows = list(csv.reader(text.replace("\0", "").splitlines(keepends=True)))
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 else [] if not rows else None


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read a table of runs; yield a heading, a launch, figures in normal units and the end of each run."""
    runs = Runs(())
    for first, last, cells in rows_of(lines):
        if cells is None:
            yield unread(first, "not a row of comma-separated values", "")
        elif not runs.columns:
            runs = Runs([_column(name.strip().removeprefix("\ufeff")[:200]) for name in cells[:MAX_COLUMNS]])
        elif len(cells) < len(runs.columns):
            if cells:
                width = len(runs.columns)
                yield unread(first, f"a row of {len(cells)} cells under a header of {width} columns", cells[0])
        else:
            records = runs.read(first, cells)
            if first != last:
                for record in records:
                    record.until = last
            yield from records


def _column(name: str) -> Column:
    return Column(name, _metric(name), HELD_OUT.match(name) is not None, bool(setting_of(name)))


_BLANK = frozenset({"", "-"})
_ABOUT = ("Name", "State")
# Combinations of filled columns; the runs of a sweep share a few.
MAX_PATTERNS = 256


class Filled:
    """The filled columns of a row: its settings, the known ones among them, and its metrics."""

    def __init__(self, columns: Sequence[Column], blank: Sequence[bool]) -> None:
        named = [(at, column) for at, column in enumerate(columns) if column.name]
        filled = [(at, column) for at, column in named if not blank[at]]
        plain = [(at, column) for at, column in filled if column.field is None]
        settings = [(at, column.name) for at, column in plain if column.name not in _ABOUT]
        self.names = [name for _, name in settings]
        self.settings = picker([at for at, _ in settings])
        self.standard = [column.name for _, column in plain if column.is_setting and column.name not in _ABOUT]
        self.metrics = sides((at, field, column.is_held_out) for at, column in filled if (field := column.field))

    def figures(self, line: int, cells: Sequence[str]) -> list[Record]:
        """Return the metrics of a row, and what is no number."""
        own, held_out = (columns.parts(line, cells) for columns in self.metrics)
        records = [*own.bad, *held_out.bad]
        if own.fields:
            records.append(Record("metrics", line, own.values, fields=own.fields, raw=own.raw))
        if held_out.fields:
            records.append(Record("validation", line, held_out.values, fields=held_out.fields, raw=held_out.raw))
        return records


class Runs:
    """Reads the rows under one header."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = columns
        self.patterns: dict[tuple[bool, ...], Filled] = {}
        names = [column.name for column in columns]
        self.name, self.state = (names.index(name) if name in names else None for name in _ABOUT)

    def read(self, line: int, row: Sequence[str]) -> list[Record]:
        """Return heading, launch, figures and end of one run."""
        cells = [*map(str.strip, row[: len(self.columns)])]
        blank = tuple(map(_BLANK.__contains__, cells))
        filled = self.patterns.get(blank)
        if filled is None:
            filled = Filled(self.columns, blank)
            if len(self.patterns) < MAX_PATTERNS:
                self.patterns[blank] = filled
        settings = dict(zip(filled.names, map(_typed, filled.settings(cells)), strict=True))
        standard = tuple([(name, settings[name]) for name in filled.standard])
        name = "" if self.name is None or blank[self.name] else cells[self.name]
        state = "" if self.state is None else cells[self.state]
        settings.update(_normal_settings(standard))
        settings["run_name"] = name[:200]
        return [
            Record("heading", line, data=name[:200] or f"run in line {line}"),
            Record("launch", line, data=settings, opens=True),
            *filled.figures(line, cells),
            *([Record("end", line, data=Ending(*_STATES[state]))] if state in _STATES else []),
        ]


_typed = lru_cache(maxsize=8192)(typed)


@lru_cache(maxsize=1024)
def _normal_settings(settings: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Return settings under normal names; the runs of a sweep share most of them."""
    return launch_of(dict(settings)).model_dump(exclude={"derived", "arguments"}, exclude_none=True)


def _metric(name: str) -> Field | None:
    """Return the field of a metric; None for a setting or a column of W&B."""
    if name == "Runtime" or name == "_runtime":
        return Field("elapsed_s", name, "s")
    if name.lower() in _COUNTERS or setting_of(name):
        return None
    quantity = quantity_of_metric(name)
    if (quantity is None or quantity.name == "learning_rate") and "/" not in name:
        return None
    return metric_field(name[:200])
