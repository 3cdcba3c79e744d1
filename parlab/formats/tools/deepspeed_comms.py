"""DeepSpeed's communication logger: each operation as it ends, and the summary by operation and message size.

Source: deepspeed/utils/comms_logging.py 0.5 to 0.19. Gbps are 10**9 bits/s, sizes are powers of 1024, and a summary
with stragglers is a second table: the shortest latency over the ranks, and what the others waited beyond it.
"""

from __future__ import annotations

import re

from parlab.formats.documents.tables import cell
from parlab.formats.grammar.pairs import Pair
from parlab.formats.grammar.records import Field, Record, figure, unread
from parlab.formats.grammar.stepcells import record_of
from parlab.formats.grammar.units import to_float
from parlab.formats.schema import Table

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
        self._table: Table | None = None
        self._operation = ""
        self._best: tuple[float, int, str] | None = None

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
            self._table = Table(line=line, title="Communication", columns=columns, header=[columns], rows=[])
            return records, True
        return self._row(line, body) if self._table is not None else ([], False)

    def _row(self, line: int, body: str) -> tuple[list[Record], bool]:
        table = self._table
        assert table is not None
        match = _ROW.match(body)
        if match is None:
            if _OPERATION.match(body):
                self._operation = body.strip()
                return [], True
            return (self.close(), False) if body.strip("_ ") else ([], True)
        if len(table.rows) >= MAX_ROWS:
            return [unread(line, f"a table is limited to {MAX_ROWS} rows", body)], True
        size = (to_float(match[1]) or 0.0) * _SIZES[match[2]]
        texts = [self._operation, f"{size:.0f}", match[3], *match[4].split()]
        table.rows.append([cell(text) for text in texts])
        busbw = to_float(texts[-1]) if "busbw" in table.columns[-1] else None
        if busbw is not None and (self._best is None or busbw > self._best[0]):
            self._best = (busbw, line, texts[-1])
        return [], True

    def close(self) -> list[Record]:
        """Return the table that was read, and its largest bus bandwidth."""
        table, self._table = self._table, None
        best, self._best, self._operation = self._best, None, ""
        if table is None or not table.rows:
            return []
        records = [Record("table", table.line, data=table)]
        if best is not None:
            records.append(figure(best[1], "max_busbw_bytes_per_s", best[0] * 1e9 / 8, best[2], "Gbit/s"))
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
    cells = [
        (Pair(field.key, text, field.unit, to_float(text)), field) for field, text in zip(fields, texts, strict=True)
    ]
    return record_of("metrics", line, rank, None, cells)
