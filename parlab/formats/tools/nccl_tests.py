"""nccl-tests and rccl-tests: time, algorithm and bus bandwidth by message size, out of place and in place.

Source: nccl-tests src/common.cu 2.0 to 2.17 and rccl-tests, whose extra columns (algo, proto, nchannels) are read
from the header like all others. Times are in us; GB/s is 10**9 bytes/s. Figures are in bytes/s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.prefixes import peel
from parlab.formats.grammar.records import Record, figure, unread
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.units import slug, to_float
from parlab.formats.launch import typed
from parlab.formats.tools.printed_tables import PrintedTable

_TYPES = r"(?:u?int(?:8|32|64)|float|double|half|b?float16|bf?16|fp?\d{1,2}(?:_?e\dm\d)?|f8e\dm\d|float8\w*)"
SIGNS: Signs = (
    (re.compile(r"^#\s+(?:size\s+count|bytes\s+N)\b.*\balgbw\s+busbw\b"), 60),
    (re.compile(rf"^\s*\d+\s+\d+\s+{_TYPES}\s+\S+\s+(?:-?\d+\s+)?[\d.]+\s+[\d.]+\s+[\d.]+\s"), 4),
    (re.compile(r"^# (?:Avg bus bandwidth|Out of bounds values)\s*:"), 8),
    (re.compile(r"^(?:# )?nThread \d+ nGpus \d+ minBytes \d+"), 20),
    (re.compile(r"^#\s+Rank\s+\d+ .{0,80}\bPid\s+\d+ on "), 20),
)

MAX_ROWS = 5_000
MAX_TOKENS = 64
_ROW = re.compile(rf"\s*(?:\d{{1,20}}\s+){{2}}{_TYPES}\s")
_HALF = re.compile(
    rf"\s*(\d{{1,20}}\s+\d{{1,20}}\s+{_TYPES}(?:\s+[a-z]\w{{1,12}}(?=\s))?(?:\s+-?\d{{1,7}}(?![\d.]))?)"
    r"\s{0,8}(?=\S{1,200} \[\d|\S{1,200}:\d|$)"
)
_PLAIN = ("size", "count", "type", "redop", "root", *("time", "algbw", "busbw", "#wrong") * 2)
# Rows of older versions have no root, and those before 2.0 of some tests no operation either.
_LEFT_OUT = {len(_PLAIN): frozenset[str](), len(_PLAIN) - 2: frozenset({"root", "redop"})}
_UNITS = ("B", "elements", "us", "GB/s", "GB/s", "us", "GB/s", "GB/s")
# Names and units of versions before 2.0, which print times in ms.
_FIRST_NAMES = {"bytes": "size", "N": "count", "op": "redop", "res": "error"}
_FIRST_UNITS = ("B", "elements", "ms", "GB/s", "GB/s", "ms", "GB/s", "GB/s")
_WITH_UNIT = frozenset({"size", "count", "time", "algbw", "busbw"})
_AVERAGE = re.compile(r"#?\s*Avg bus bandwidth\s*:\s*(\S{1,40})")
_WRONG = re.compile(r"#?\s*Out of bounds values\s*:\s*(\S{1,40})\s*(\S{0,20})")
_TEST = re.compile(r"#\s*Collective test (?:starting|concluded):\s*(\w{1,60})")
_COMMAND = re.compile(r"(?:^|[\s/])([a-z]+(?:_[a-z]+)*_perf)(?=\s)")
_SETTINGS = re.compile(r"#?\s*nThread\s+\d")
_SETTING = re.compile(r"([A-Za-z][\w ]{0,30}?):?\s+(\d{1,20})(?:\([a-z]{1,12}\))?(?=\s|$)")
# Versions before 2.0 print some of the comments without their sign.
_COMMENTS = ("#", "nThread ", "Avg bus bandwidth", "Out of bounds values")
_RANK = re.compile(r"#\s*Rank\s+(\d{1,7})\s+.{0,200}?\bdevice\s+\d+\s+\[[^\]]{0,40}\]\s*(.{0,80})")


def _columns(names: list[str], units: list[str]) -> list[str]:
    """Return column names: the first time, algbw, busbw and #wrong are out of place, the second ones in place."""
    remaining_units = iter(units)
    columns: list[str] = []
    for index, name in enumerate(names):
        unit = next(remaining_units, "") if name in _WITH_UNIT else ""
        is_repeated = names.count(name) > 1
        place = ("in-place " if name in names[:index] else "out-of-place ") if is_repeated else ""
        columns.append(f"{place}{name} ({unit})" if unit else f"{place}{name}")
    return columns


class Test:
    """A table that is being read, with the settings and ranks printed before it."""

    def __init__(self) -> None:
        self.title: str | None = None
        self.settings: dict[str, Any] = {}
        self.ranks: set[int] = set()
        self.names: list[str] = []
        self.table: PrintedTable | None = None

    def header(self, line: int, names: list[str]) -> list[Record]:
        """Start a table; return the records of the previous one."""
        records = self.close()
        self.names = names[:MAX_TOKENS]
        self.table = PrintedTable(line, _columns(self.names, []), MAX_ROWS)
        self.table.content.header = [self.names]
        data = dict(self.settings)
        if self.ranks:
            data["world_size"] = len(self.ranks)
        self.settings, self.ranks = {}, set()
        return [*records, Record("launch", line, data=data, opens=True)] if data else records

    def units(self, units: list[str]) -> None:
        """Read the second line of the header."""
        if self.table is not None and not self.table.lines:
            self.table.content.columns = _columns(self.names, [unit.strip("()") for unit in units])
            self.table.content.header = [self.names, units[:MAX_TOKENS]]

    def completes(self, half: list[str], tokens: list[str]) -> bool:
        """Return whether these are the numbers of a row of which the first cells stand on an earlier line."""
        width = len(half) + len(tokens)
        is_width = width == len(self.names) if self.table is not None else width in (*_LEFT_OUT, len(_PLAIN) - 1)
        return is_width and all(token == "N/A" or to_float(token) is not None for token in tokens)

    def row(self, line: int, tokens: list[str], text: str) -> list[Record]:
        """Read one row; without a header, assume the standard columns."""
        records: list[Record] = []
        if self.table is None:
            left_out = _LEFT_OUT.get(len(tokens), frozenset({"root"}))
            names = [name for name in _PLAIN if name not in left_out]
            records = self.header(line, names)
            self.units(list(_UNITS))
        assert self.table is not None
        return [*records, *self.table.add(line, tokens, text)]

    def close(self) -> list[Record]:
        """Return the table and its figures."""
        table, self.table = self.table, None
        if table is None or not table.lines:
            return []
        table.content.title, self.title = self.title, None
        records = table.records()
        if (best := table.largest("busbw")) is not None:
            value, row, column = best
            text = f"{table.rows[row][column].text} GB/s"
            records.append(figure(table.lines[row], "max_busbw_bytes_per_s", value * 1e9, text, "GB/s"))
        if (widest := table.largest("algbw")) is not None and (ranks := _ranks(table, *widest)) is not None:
            basis = "busbw / algbw = 2 (n - 1) / n in the row of the largest algbw"
            records.append(figure(table.content.line, "derived_ranks", float(ranks), basis))
        return records


def _ranks(table: PrintedTable, algbw: float, row: int, column: int) -> int | None:
    """Derive n from busbw / algbw = 2 (n - 1) / n of an all-reduce; None if the printed digits do not suffice.

    Only an all-reduce has a ratio above 1; the ratios of other operations, (n - 1) / n or 1, are ambiguous.
    """
    busbw = next((cell.value for cell in table.rows[row][column + 1 : column + 2]), None) or 0.0
    ratio = busbw / algbw if algbw > 0.0 else 0.0
    if not 1.0 < ratio < 2.0:
        return None
    ranks = 2.0 / (2.0 - ratio)
    doubt = ranks * ranks / 2.0 * 0.005 * (1.0 + ratio) / algbw
    return round(ranks) if doubt < 0.5 and abs(ranks - round(ranks)) <= doubt + 1e-9 and ranks < 1e6 else None


def _comment(test: Test, line: int, text: str) -> list[Record]:
    tokens = text.lstrip("# \t").split()[:MAX_TOKENS]
    if len(tokens) > 2 and tokens[0] in ("size", "bytes") and "busbw" in tokens:
        records = test.header(line, [_FIRST_NAMES.get(name, name) for name in tokens])
        if tokens[0] == "bytes":
            test.units(list(_FIRST_UNITS))
        return records
    if tokens and tokens[0] == "(B)":
        test.units(tokens)
        return []
    match = _AVERAGE.match(text)
    if match:
        value = to_float(match[1])
        if value is None:
            return [unread(line, "not a finite number", text)]
        return [figure(line, "avg_busbw_bytes_per_s", value * 1e9, f"{match[1]} GB/s", "GB/s")]
    match = _WRONG.match(text)
    if match:
        return [figure(line, "out_of_bounds_values", to_float(match[1]), " ".join(match.groups()))]
    match = _TEST.match(text)
    if match:
        test.title = match[1]
    elif _SETTINGS.match(text):
        pairs = _SETTING.findall(text.lstrip("# ")[:1000])
        test.settings.update((slug(name), typed(value)) for name, value in pairs)
    elif (match := _RANK.match(text)) and len(test.ranks) < 1_000_000:
        test.ranks.add(int(match[1]))
        test.settings.setdefault("device", match[2].strip())
    return []


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read the output of nccl-tests or rccl-tests; yield a table per test and its figures in bytes/s.

    Columns are named as printed, with units: `size (B)`, `out-of-place busbw (GB/s)`, `in-place time (us)`, `algo`.
    """
    test = Test()
    types: set[str] = set()
    half: tuple[int, list[str]] | None = None
    for line, rank, time, tagged in peel(lines):
        text = tagged.lstrip(" ")
        if text.startswith(_COMMENTS):
            if "Collective test starting" in text:
                yield from test.close()
            yield from _comment(test, line, text[:4000])
            continue
        tokens = text[:4000].split(maxsplit=MAX_TOKENS)
        if half is not None and test.completes(half[1], tokens):
            yield from test.row(half[0], [*half[1], *tokens], text)
            half = None
            continue
        if (first := _HALF.match(text[:400])) is not None:
            # The test prints the rest of the row behind lines of NCCL itself.
            half = (line, first[1].split())
            continue
        if len(tokens) > 3 and tokens[2] in types and tokens[0].isdecimal() and tokens[1].isdecimal():
            yield from test.row(line, tokens, text)
            continue
        if _ROW.match(text[:400]):
            if len(types) < MAX_TOKENS:
                types.add(tokens[2])
            yield from test.row(line, tokens, text)
            continue
        command = _COMMAND.search(text[:4000]) if "_perf" in text else None
        if command and test.table is None:
            test.title = command[1]
        end = ending(text)
        if end:
            yield Record("end", line, data=end, rank=rank, time=time)
    yield from test.close()
