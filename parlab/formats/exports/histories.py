"""Histories of metrics as CSV or JSON lines: exports of W&B and TensorBoard, Lightning's CSVLogger.

W&B exports a chart with the columns `Step`, `<run> - <metric>` and `<run> - <metric>__MIN`, and a history with `_step`,
`_runtime`, `_timestamp` and a column per metric; TensorBoard exports `Wall time,Step,Value`, and the tag only in the
name of the file. What a column means follows from its name, by the table that all metrics share (`names.py`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import Any, Literal

import orjson

from parlab.formats.grammar import rows
from parlab.formats.grammar.metric_fields import HELD_OUT, metric_field
from parlab.formats.grammar.records import Field, Record, unread
from parlab.formats.grammar.rows import Parts, parts_of, picker
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.stepcells import is_timer
from parlab.formats.grammar.units import LARGEST, normal, to_float, unix_time
from parlab.formats.launch import flatten

MAX_COLUMNS = 2_000
MAX_RUNS = 100
# Longest name of a value in a JSON object.
MAX_NAME = 500
# Combinations of filled columns; W&B fills only those that a step logged.
MAX_PATTERNS = 256
# Rows of a chart with several runs, which are read run by run.
MAX_ROWS = 200_000

_STEP = r"(?:_?step|global_step|trainer/global_step|train/global_step|iteration|iter|num_updates|Step)"
_STEPS = frozenset({"_step", "step", "global_step", "trainer/global_step", "train/global_step", "iteration", "iter",
                    "num_updates"})  # fmt: skip
# Clocks of the machine that logged; they are the times of the records.
_CLOCKS = frozenset({"wall time", "_timestamp", "timestamp", "_wandb", "time", "date", "created_at", "datetime"})
_RUNTIME = frozenset({"_runtime", "relative time (process)", "relative time (wall)"})
_PLACES = frozenset({"epoch", "elapsed_s"})
_SPREAD = ("__MIN", "__MAX")
# The file's name has the tag, its content does not.
_POINT = (Field("value", "Value"),)
_POINTS = re.compile(r"^\ufeff?\s*\[\[\d{9,11}(?:\.\d{1,12})?, ?\d{1,15}, ?[^\s\],]{1,40}\](?:,|\]|\s*$)")
_HEADER = re.compile(
    rf'^(?=[^\n]*,)(?:"?[A-Za-z_][^,"\n]{{0,200}}"?,){{0,40}}"?{_STEP}"?(?:,\s?"?[A-Za-z_][^\n]*|,?)\s*$'
)
# The same with tabs between the columns.
_TABBED = re.compile(rf"^(?=[^\n,]*\t)(?:[A-Za-z_][^\t,\n]{{0,200}}\t){{0,40}}{_STEP}(?:\t[A-Za-z_][^\n,]*|\t?)\s*$")
_OBJECT = re.compile(rf'^(?:DLLL )?\{{(?!"parlab")(?=[^\n]{{0,1500}}"{_STEP}": ?\[?\d)"')


# The statistics of a tick of StyleGAN and EDM: `{"Loss/loss": {"num": 50, "mean": 0.149, "std": 0.35}, ...}`.
_SUMMARY = re.compile(r'^ {1,8}"_(?:runtime|step|timestamp)": [\d.]{1,20},?$')  # W&B's, an entry a line
_STATISTICS = re.compile(r'^\{"[\w/]{1,80}": ?\{"num": ?\d{1,18}, ?"mean": ?[\d.-]')


@dataclass(frozen=True)
class Export:
    """A reader: patterns of its lines, and the function that reads them."""

    SIGNS: Signs
    read: Callable[[Iterable[str]], Iterator[Record]]
    reads: str
    """Its files, for the table of formats."""


class Columns:
    """The columns of one run: place in a row, name, and what the values are."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self.fields = [(at, _field(name), HELD_OUT.match(name) is not None) for at, name in names.items()]
        self.filled = picker(list(names))
        self.patterns: dict[tuple[bool, ...], tuple[rows.Columns, rows.Columns]] = {}

    def records(self, line: int, cells: list[str], iteration: int | None) -> list[Record]:
        """Return the step, timers and evaluation of a row; empty cells were not measured in this step."""
        filled = tuple(map(bool, self.filled(cells)))
        columns = self.patterns.get(filled)
        if columns is None:
            columns = rows.sides(compress(self.fields, filled))
            if len(self.patterns) < MAX_PATTERNS:
                self.patterns[filled] = columns
        own, held_out = columns[0].parts(line, cells), columns[1].parts(line, cells)
        records = _measured(line, iteration, own, held_out)
        return [*records, *own.bad, *held_out.bad] if own.bad or held_out.bad else records


def _field(name: str) -> Field:
    return Field("elapsed_s", name, "s") if name.lower() in _RUNTIME else metric_field(name[:200])


def _measured(line: int, iteration: int | None, own: Parts, held_out: Parts) -> list[Record]:
    """Return the records of one step: the step, its timers and figures on held-out data."""
    records: list[Record] = []
    values, fields, raw, _ = own
    timers = {name.removesuffix("_s"): values.pop(name) for name in filter(is_timer, [*values])}
    if timers or values.keys() - _PLACES:
        records.append(Record("step", line, values, iteration, None, None, fields, raw))
    if timers:
        records.append(Record("timers", line, timers, iteration))
    if held_out.values:
        values, fields, raw, _ = held_out
        records.append(Record("validation", line, values, iteration, None, None, fields, raw))
    return records


class Table:
    """A CSV table below its header."""

    def __init__(self, line: int, names: list[str]) -> None:
        self.line = line
        self.width = len(names)
        lower = [name.lower() for name in names]
        self.step = next((at for at, name in enumerate(lower) if name in _STEPS), None)
        self.clock = next((at for at, name in enumerate(lower) if name in _CLOCKS), None)
        runs: dict[str, dict[int, str]] = {}
        for at, name in enumerate(names[:MAX_COLUMNS]):
            if at == self.step or not name or lower[at] in _CLOCKS or name.endswith(_SPREAD):
                continue
            run, dash, metric = name.rpartition(" - ")
            if len(runs) < MAX_RUNS or (run if dash else "") in runs:
                runs.setdefault(run if dash else "", {})[at] = metric
        self.runs = {run: Columns(columns) for run, columns in runs.items()}
        self.first = next(iter(self.runs.values()), None)
        # Runs after the first one wait until the rows of the runs before them have been read.
        self.waiting: list[tuple[int, list[str]]] = []

    def opened(self) -> list[Record]:
        """Return the launch of the first run."""
        beyond = self.width - MAX_COLUMNS
        limit = [unread(self.line, f"{beyond} columns beyond the limit of {MAX_COLUMNS}", "")] if beyond > 0 else []
        return limit + self._launch(next(iter(self.runs), ""), self.line)

    @staticmethod
    def _launch(run: str, line: int) -> list[Record]:
        return [Record("launch", line, data={"run_name": run[:200]}, opens=True)] if run else []

    def row(self, line: int, cells: list[str]) -> list[Record]:
        """Read one row."""
        if self.first is None:
            return []
        if len(self.runs) > 1:
            if len(self.waiting) >= MAX_ROWS:
                return [unread(line, f"a chart of several runs is limited to {MAX_ROWS} rows", ",".join(cells))]
            self.waiting.append((line, cells))
        records = self.first.records(line, cells, self._iteration(cells))
        if self.clock is not None and self.clock < len(cells) and unix_time(cells[self.clock]) is not None:
            for record in records:
                record.time = cells[self.clock].strip()
        return records

    def close(self) -> Iterator[Record]:
        """Yield the records of the other runs."""
        for run, columns in list(self.runs.items())[1:]:
            yield from self._launch(run, self.line)
            for line, cells in self.waiting:
                yield from columns.records(line, cells, self._iteration(cells))
        self.waiting = []

    def _iteration(self, cells: list[str]) -> int | None:
        if self.step is None or self.step >= len(cells):
            return None
        text = cells[self.step]
        if text.isdecimal() and len(text) < 16 and text.isascii():
            return int(text)
        text = text.strip()
        return whole(to_float(text) if text else None)


def whole(value: float | None) -> int | None:
    """Return a whole number as an int; None for anything else."""
    return int(value) if value is not None and 0 <= value < 2**53 and value == int(value) else None


def read_csv(lines: Iterable[str]) -> Iterator[Record]:
    """Read tables of metrics by step; yield steps, timers in seconds and evaluations, run by run."""
    table: Table | None = None
    separator = ","
    for number, line in enumerate(lines, 1):
        if table is not None and line[:1].isdigit() and '"' not in line:
            plain = line.rstrip("\r\n").split(separator)
            if len(plain) == table.width:
                yield from table.row(number, plain)
                continue
        text = line.lstrip("\ufeff") if number == 1 else line
        if not text.strip():
            continue
        cells, is_header, separator = _row(text, separator)
        if cells is None:
            yield unread(number, "not a row of comma-separated values", text)
        elif is_header:
            if table is not None:
                yield from table.close()
            table = Table(number, [cell.strip() for cell in cells])
            yield from table.opened()
        elif table is None:
            yield unread(number, "a row without a header above it", text)
        else:
            if len(cells) != table.width:
                yield unread(number, f"a row of {len(cells)} cells under a header of {table.width} columns", text)
                cells += [""] * (table.width - len(cells))
            yield from table.row(number, cells)
    if table is not None:
        yield from table.close()


def _row(text: str, separator: str) -> tuple[list[str] | None, bool, str]:
    """Return the cells of a row, whether it is a header, and what separates the cells of the rows below."""
    if not text[0].isdigit():
        head = text[:20_000]
        if _TABBED.match(head):
            return text.rstrip("\r\n").split("\t"), True, "\t"
        if _HEADER.match(head):
            return _cells(text), True, ","
    return _cells(text) if separator == "," else text.rstrip("\r\n").split(separator), False, separator


def _cells(text: str) -> list[str] | None:
    """Return the cells of a row; None if its quotes are damaged."""
    if '"' not in text:
        return text.rstrip("\r\n").split(",")
    try:
        return next(csv.reader([text.replace("\0", "")]), None)
    except csv.Error:
        return None


def read_json(lines: Iterable[str]) -> Iterator[Record]:
    """Read JSON objects, one a line; yield steps, timers in seconds and evaluations."""
    for number, last, data in _json_lines(lines, "a line that is not a JSON object"):
        if isinstance(data, Record):
            yield data
        elif isinstance(data, dict):
            for record in _object(number, data):
                record.until = last
                yield record


def _json_lines(lines: Iterable[str], reason: str) -> Iterator[tuple[int, int, Any]]:
    """Yield first line, last line and content of what is JSON: a line each, or an object between lines of its braces.

    What is not JSON is a Record with the reason.
    """
    begun: list[str] = []
    first = number = 0
    for number, line in enumerate(lines, 1):
        text = line.strip().lstrip("\ufeff").removeprefix("DLLL ")
        if begun and line.startswith("{"):
            yield first, number - 1, unread(first, _ENDLESS, " ".join(begun))
            begun = []
        if begun or text == "{":
            first = first if begun else number
            begun.append(text)
            if not line.startswith("}") and len(begun) <= MAX_COLUMNS:
                continue
            text, begun = " ".join(begun), []
        elif not text:
            continue
        else:
            first = number
        try:
            yield first, number, orjson.loads(text)
        except orjson.JSONDecodeError:
            yield first, number, unread(first, reason, text)
    if begun:
        yield first, number, unread(first, _ENDLESS, " ".join(begun))


_ENDLESS = "a JSON object that does not end"


def _object(line: int, data: Mapping[str, Any]) -> list[Record]:
    iteration: int | None = None
    own: list[tuple[Field, str, float]] = []
    held_out: list[tuple[Field, str, float]] = []
    beyond: list[Record] = []
    is_nested = dict in map(type, data.values())
    time: str | None = None
    for at, (name, content) in enumerate(_leaves(data) if is_nested else data.items()):
        if at >= MAX_COLUMNS:
            beyond.append(unread(line, f"more than {MAX_COLUMNS} values", name))
            break
        if name == "step" and type(content) is list and content and type(content[-1]) is int:
            iteration = whole(float(content[-1]))  # epoch and step, of DLLogger
            continue
        if name in _CLOCKS and type(content) in _TIMES and unix_time(str(content)) is not None:
            time = str(content)
            continue
        number = content if type(content) in (float, int) else _printed(content)
        if number is None or not -LARGEST < number < LARGEST:
            continue
        role, field = _meaning(name[:MAX_NAME])
        if role == "step":
            iteration = whole(float(number)) if iteration is None else iteration
        elif field is not None:
            (held_out if role == "held out" else own).append((field, str(number)[:80], float(number)))
    if _TICK in data:
        iteration, time = _tick(data[_TICK]), None  # of many steps
    records = _measured(line, iteration, parts_of(own), parts_of(held_out))
    for record in records:
        record.time = time
    return [*records, *beyond]


_TICK = "Progress/tick"


def _tick(content: object) -> int | None:
    mean = content.get("mean") if isinstance(content, Mapping) else content
    return whole(float(mean)) if isinstance(mean, float) else None


def _leaves(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested objects; the mean of a quantity has the name of the quantity."""
    return ((name.removesuffix("/mean"), content) for name, content in flatten(data, mark="/"))


_TIMES = frozenset({str, int, float})


def _printed(content: object) -> float | None:
    """Return a number that is printed as a string, with its decimals; None for anything else."""
    return to_float(content[:40]) if isinstance(content, str) and "." in content[:40] else None


@lru_cache(maxsize=8192)
def _meaning(name: str) -> tuple[Literal["step", "clock", "own", "held out"], Field | None]:
    """Return what the value of a JSON object is, by its name."""
    if name.lower() in _STEPS:
        return "step", None
    if name.lower() in _CLOCKS:
        return "clock", None
    return "held out" if HELD_OUT.match(name) else "own", _field(name)


def read_points(lines: Iterable[str]) -> Iterator[Record]:
    """Read a scalar that TensorBoard exports as JSON, one line of `[[wall time, step, value], ...]`; yield steps."""
    for number, _, data in _json_lines(lines, "a line that is not a list of points"):
        for item in data if isinstance(data, list) else [data]:
            yield item if isinstance(item, Record) else _point(number, item)


def _point(line: int, item: object) -> Record:
    if not isinstance(item, list) or len(item) != 3 or type(item[1]) is not int or not 0 <= item[1] < 2**53:
        return unread(line, "not a point of wall time, step and value", str(item))
    value = to_float(str(item[2])[:80])
    if value is None:
        return unread(line, "not a finite number", f"step {item[1]}: {item[2]}")
    return Record("step", line, {"value": value}, item[1], None, None, _POINT, (str(item[2])[:80],))


# TensorBoard names a downloaded scalar `run-<run>-tag-<tag>.csv`.
_TAG = re.compile(r"(?:^|[-_/\\])tag-([^/\\]{1,200}?)(?: \(\d{1,3}\))?\.(?:csv|json)(?:\.(?:gz|bz2|xz|zst))?$")


def tagged(records: Iterable[Record], file: str) -> Iterator[Record]:
    """Name the value of a downloaded scalar after the tag in the name of its file."""
    tag = _TAG.search(file)
    if tag is None:
        yield from records
        return
    field = _field(tag[1])
    is_held_out = HELD_OUT.match(tag[1]) is not None
    for record in records:
        if record.kind == "step" and record.values.keys() == {"value"}:
            record.fields = (field,)
            value = normal(record.values["value"], field.scale)
            record.values = {field.name: value}
            if is_held_out:
                record.kind = "validation"
            elif is_timer(field.name):
                record.kind, record.values = "timers", {field.name.removesuffix("_s"): value}
        yield record


CSV = Export(
    ((_HEADER, 12), (_TABBED, 12)),
    read_csv,
    "histories of metrics: W&B, TensorBoard, Lightning's CSVLogger, DeepSpeed's monitor",
)
JSON_LINES = Export(
    ((_OBJECT, 6), (_STATISTICS, 6), (_SUMMARY, 6)),
    read_json,
    "JSON objects with a step, one a line; DLLogger's `DLLL {...}`",
)
JSON_POINTS = Export(
    ((_POINTS, 20),), read_points, "a scalar that TensorBoard exports as JSON: `[[wall time, step, value], ...]`"
)
