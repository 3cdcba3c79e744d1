"""Micro-benchmarks of links: OSU Micro-Benchmarks, and ib_write_bw and its relatives of perftest.

Sources: osu-micro-benchmarks/c/util (OSU prints MB of 10**6 bytes), linux-rdma/perftest (`Gb/sec` is 10**9 bits/s,
`MB/sec` 2**20 bytes/s). A test gives a table with the printed units, its title, and the largest bandwidth or the
smallest latency as a figure in bytes/s or s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.prefixes import peel_line
from parlab.formats.grammar.records import Record, figure
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.units import MIB
from parlab.formats.schema import Table
from parlab.formats.tools.printed_tables import PrintedTable

SIGNS: Signs = (
    (re.compile(r"^# OSU \w.{0,80}Test"), 60),
    (re.compile(r"^# Size +(?:Avg )?(?:Latency ?\(us\)|Bandwidth ?\(MB/s\))"), 30),
    (re.compile(r"^ *(?:RDMA_\w+|Send|Atomic_\w+) (?:Bidirectional )?(?:BW|Latency|Post List BW) Test"), 30),
    (re.compile(r"^ ?#bytes +#iterations +(?:BW peak|t_min)"), 30),
)

MAX_ROWS = 20_000
MAX_COLUMNS = 40
_TITLE = re.compile(r"^# (OSU \w.{0,80}?) ?v?[\d.]*\s*$|^ *((?:RDMA_\w+|Send|Atomic_\w+) [\w ]{2,40} Test)\s*$")
_HEADER = re.compile(r"^ ?#\s?(?:Size|bytes)\s")
# `BW average[Gb/sec]`, `Avg Latency(us)`, `Size`.
_COLUMN = re.compile(r"#?[A-Za-z_%.0-9]+(?: [A-Za-z_%.0-9]+)*(?:\s?[\[(][^\])]{1,20}[\])])?")
_BYTES_PER_S = {"mb/s": 1e6, "mb/sec": float(MIB), "gb/sec": 1e9 / 8}


def _columns(text: str) -> list[str]:
    """Split a header: two blanks part two columns, and so does a bracket."""
    names: list[str] = []
    for part in re.split(r"\s{2,}|\t+|(?<=[\])])\s+", text.strip().lstrip("# ")):
        names += [match[0].strip() for match in _COLUMN.finditer(part)]
    return names[:MAX_COLUMNS]


class Tests:
    """The tests of a file, one after the other."""

    def __init__(self) -> None:
        self.title: str | None = None
        self.table: PrintedTable | None = None

    def header(self, line: int, text: str) -> list[Record]:
        """Start a table; return the records of the one before it."""
        records = self.close()
        self.table = PrintedTable(line, _columns(text), MAX_ROWS, self.title)
        return records

    def plain_row(self, line: int, text: str) -> list[Record] | None:
        """Read the usual row, a line of whole cells and nothing else; None for any other line."""
        if self.table is None or len(text) > 4000 or "\x1b" in text or "\r" in text:
            return None
        tokens = text.split()
        if len(tokens) != self.table.width or not tokens[0].isdecimal():
            return None
        return self.table.add(line, tokens, text)

    def close(self) -> list[Record]:
        """Return the table and its figure."""
        table, self.table = self.table, None
        return [] if table is None else [*table.records(), *_best(table.content)]


def _best(table: Table) -> list[Record]:
    """Return the largest bandwidth, else the smallest latency."""
    for at, name in enumerate(table.columns):
        unit = name.rpartition("[")[2].rpartition("(")[2].rstrip("])").lower()
        values = [row[at].value for row in table.rows]
        numbers = [value for value in values if value is not None and value > 0]
        if not numbers:
            continue
        if unit in _BYTES_PER_S and "peak" not in name.lower():
            best = max(numbers)
            text = f"largest {name}: {best:g}"
            return [figure(table.line, "max_bandwidth_bytes_per_s", best * _BYTES_PER_S[unit], text, "bytes/s")]
        if unit in ("us", "usec") and ("avg" in name.lower() or name.lower().startswith("latency")):
            best = min(numbers)
            return [figure(table.line, "min_latency_s", best * 1e-6, f"smallest {name}: {best:g}", "s")]
    return []


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read the output of OSU Micro-Benchmarks or perftest; yield a table per test and its figure."""
    tests = Tests()
    for number, printed in enumerate(lines, 1):
        row = tests.plain_row(number, printed)
        yield from _read_line(tests, number, printed) if row is None else row
    yield from tests.close()


def _read_line(tests: Tests, number: int, printed: str) -> Iterator[Record]:
    """Read a line that may have prefixes."""
    for line, rank, time, peeled in peel_line(number, printed):
        text = peeled[:4000].rstrip()
        if tests.table is not None and text.lstrip()[:1].isdigit():
            yield from tests.table.add(line, text.split(), text)
        elif title := _TITLE.match(text):
            tests.title = title[1] or title[2]
        elif _HEADER.match(text):
            yield from tests.header(line, text)
        elif end := ending(text):
            yield Record("end", line, data=end, rank=rank, time=time)
