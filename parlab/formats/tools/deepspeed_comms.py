"""DeepSpeed's communication logger: each operation as it ends, and the summary by operation and message size.

Source: deepspeed/utils/comms_logging.py 0.5 to 0.19. Gbps are 10**9 bits/s, sizes are powers of 1024, and a summary
with stragglers is a second table: the shortest latency over the ranks, and what the others waited beyond it.
"""

from __future__ import annotations

import re

from parlab.formats.grammar.records import Field, Record, figure
from parlab.formats.grammar.rows import parts_of
from parlab.formats.grammar.units import to_float
from parlab.formats.tools.printed_tables import PrintedTable

MAX_ROWS = 5_000
_SIZES = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
_SIZE = r"([\d.]{1,20}) ?(B|[KMGT]B)"
_HEADER = re.compile(r"Comm\. Op\s{2,}Message Size\s{2,}Count\s{2,}(?P<rest>Total \S.{0,200})$")
_NAMES = re.compile(r"\S[^()]{0,40}\([A-Za-z]{1,8}\)")
_OPERATION = re.compile(r"[a-z]\w{1,60}(?: \| \[Caller Func: \w{1,80}\])?\s*$")
_ROW = re.compile(rf"\s*{_SIZE}\s+(\d{{1,18}})((?:\s+-?[\d.]{{1,24}}){{4}})\s*$")
_CALL = re.compile(
    rf"comm op: (.{{1,100}}?) \| time ?\(ms\): ([\d.]{{1,24}}) \| msg size: {_SIZE}"
    r" \| algbw ?\(Gbps\): ([\d.]{1,24}) \| busbw ?\(Gbps\): ([\d.]{1,24})"
)
SIGNS = ((re.compile(r"\bcomm op: .{1,100} \| time ?\(ms\): "), 6), (_HEADER, 6))


class Comms:
    """Reads the lines of the logger one by one."""

    def __init__(self) -> None:
        self._table: PrintedTable | None = None
        self._operation = ""

    @property
    def is_open(self) -> bool:
        """Whether a table is being read."""
        return self._table is not None

    def feed(self, line: int, rank: int | None, body: str) -> tuple[list[Record], bool]:
        """Read a line; return its records, with those of a table that it ends, and whether it is one of the logger."""
        if "comm op: " in body and (call := _CALL.search(body)):
            return _call(line, rank, call), True
        header = _HEADER.search(body.rstrip()) if "Comm. Op" in body else None
        if header is not None:
            records = self.close()
            names = _NAMES.findall(header["rest"])  # names of 19 letters are followed by one space
            columns = ["operation", "message size (B)", "count", *names]
            self._table = PrintedTable(line, columns, MAX_ROWS, "Communication")
            return records, True
        return self._row(self._table, line, body) if self._table is not None else ([], False)

    def _row(self, table: PrintedTable, line: int, body: str) -> tuple[list[Record], bool]:
        match = _ROW.match(body)
        if match is None:
            if _OPERATION.match(body):
                self._operation = body.strip()
                return [], True
            return (self.close(), False) if body.strip("_ ") else ([], True)
        size = (to_float(match[1]) or 0.0) * _SIZES[match[2]]
        return table.add(line, [self._operation, f"{size:.0f}", match[3], *match[4].split()], body), True

    def close(self) -> list[Record]:
        """Return the table that was read, and its largest bus bandwidth."""
        table, self._table = self._table, None
        self._operation = ""
        if table is None:
            return []
        records = table.records()
        if (best := table.largest("busbw")) is not None:
            value, row, column = best
            text = table.rows[row][column].text
            records.append(figure(table.lines[row], "max_busbw_bytes_per_s", value * 1e9 / 8, text, "Gbit/s"))
        return records


def _call(line: int, rank: int | None, match: re.Match[str]) -> list[Record]:
    """Return an operation as metrics of the launch."""
    name = re.sub(r"\W+", "_", match[1].partition("|")[0]).strip("_").lower()
    texts = (match[2], match[3], match[5], match[6])
    fields = (
        Field(f"{name}_s", "time (ms)", "ms", 1e-3),
        Field(f"{name}_bytes", "msg size", match[4], float(_SIZES[match[4]])),
        Field(f"{name}_algbw_bytes_per_s", "algbw (Gbps)", "Gbit/s", 1e9 / 8),
        Field(f"{name}_busbw_bytes_per_s", "busbw (Gbps)", "Gbit/s", 1e9 / 8),
    )
    numbers = [(field, text, to_float(text)) for field, text in zip(fields, texts, strict=True)]
    parts = parts_of([(field, text, number) for field, text, number in numbers if number is not None])
    return [Record("metrics", line, parts.values, rank=rank, fields=parts.fields, raw=parts.raw)]
