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

from parlab.formats.launch import typed
from parlab.formats.metric_fields import HELD_OUT, metric_field
from parlab.formats.names import launch_of, quantity_of_metric, setting_of
from parlab.formats.quantities import normal, to_float
from parlab.formats.records import Ending, Field, Record, unread
from parlab.formats.sniff import Signs

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
    columns: list[Column] = []
    for first, last, cells in rows_of(lines):
        if cells is None:
            yield unread(first, "not a row of comma-separated values", "")
        elif not columns:
            columns = [_column(name.strip().removeprefix("\ufeff")[:200]) for name in cells[:MAX_COLUMNS]]
        elif len(cells) < len(columns):
            if cells:
                yield unread(first, f"a row of {len(cells)} cells under a header of {len(columns)} columns", cells[0])
        else:
            for record in _run(first, columns, cells):
                record.until = last
                yield record


def _column(name: str) -> Column:
    return Column(name, _metric(name), HELD_OUT.match(name) is not None, bool(setting_of(name)))


def _run(line: int, columns: Sequence[Column], cells: Sequence[str]) -> Iterator[Record]:
    settings: dict[str, Any] = {}
    own: list[tuple[Field, str, float]] = []
    held_out: list[tuple[Field, str, float]] = []
    named_settings: list[tuple[str, Any]] = []
    for (name, field, is_held_out, is_setting), text in zip(columns, map(str.strip, cells), strict=False):
        if not text or text == "-" or not name:
            continue
        if field is None:
            settings[name] = value = _typed(text)
            if is_setting:
                named_settings.append((name, value))
        elif (number := to_float(text)) is None:
            yield unread(line, "not a finite number", f"{name}: {text}")
        else:
            (held_out if is_held_out else own).append((field, text, normal(number, field.scale)))
    state, name = str(settings.pop("State", "")), str(settings.pop("Name", ""))
    yield Record("heading", line, data=name[:200] or f"run in line {line}")
    data = {**settings, **_normal_settings(tuple(named_settings)), "run_name": name[:200]}
    yield Record("launch", line, data=data, opens=True)
    if own:
        yield _figures("metrics", line, own)
    if held_out:
        yield _figures("validation", line, held_out)
    if state in _STATES:
        yield Record("end", line, data=Ending(*_STATES[state]))


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


def _figures(kind: Literal["metrics", "validation"], line: int, entries: Sequence[tuple[Field, str, float]]) -> Record:
    values = {field.name: value for field, _, value in entries}
    fields, raw = tuple(field for field, _, _ in entries), tuple(text for _, text, _ in entries)
    return Record(kind, line, values, fields=fields, raw=raw)
