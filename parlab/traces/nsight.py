"""Nsight Systems' SQLite export (`nsys export --type sqlite`) -> the columns of a rank.

Tables and columns: Nsight Systems User Guide, "SQLite Schema Reference". Times are nanoseconds of the report; it
states when it began (TARGET_INFO_SESSION_START_TIME). Missing tables mean that the report did not trace them.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .chunks import BadTrace
from .events import LAUNCH, Messages, Timeline
from .kinds import COMMUNICATION, kind_of
from .reading import RankTrace, StepRange
from .spool import Spool

SIGN = b"SQLite format 3\0"
_NANO = 1e-9
_STEP = re.compile(r"(?:ProfilerStep#|(?:train[ _-]?)?(?:step|iter(?:ation)?)[ _#:-]*)(\d{1,9})", re.I)
_KERNELS = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName", ""),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "", "Memcpy "),
    ("CUPTI_ACTIVITY_KIND_MEMSET", "", "Memset "),
)


def read_nsight(file: IO[bytes], folder: Path | None = None) -> RankTrace:
    """Read an export with one process. Raises BadTrace if it is no SQLite database, or has no table of Nsight."""
    with tempfile.NamedTemporaryFile(suffix=".sqlite", dir=folder) as copy:
        shutil.copyfileobj(file, copy)
        copy.flush()
        connection = sqlite3.connect(f"file:{copy.name}?mode=ro&immutable=1", uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            return _Export(connection, copy.tell(), folder).trace()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            message = f"the database cannot be read ({error}); export the report again with nsys export"
            raise BadTrace(message) from error
        finally:
            connection.close()


class _Export:
    def __init__(self, connection: sqlite3.Connection, size: int, folder: Path | None) -> None:
        self._connection = connection
        self._size, self._folder = size, folder
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._tables = {str(name) for (name,) in rows}
        self._names: dict[str, int] = {}
        self._strings: dict[int, str] = {}
        self.problems: list[str] = []

    def trace(self) -> RankTrace:
        if not self._tables & {table for table, *_ in _KERNELS} and "NVTX_EVENTS" not in self._tables:
            message = "the database has no tables of Nsight Systems; export a report with nsys export --type sqlite"
            raise BadTrace(message)
        if "StringIds" in self._tables:
            self._strings = dict(self._connection.execute("SELECT id, value FROM StringIds"))
        timeline, messages = self._timeline()
        origin_s = timeline.begin_s
        timeline.shift_s = origin_s
        spans, steps = self._ranges(origin_s)
        if not len(timeline):
            self.problems.append("the report has no kernels; trace CUDA with nsys profile --trace=cuda,nvtx")
        return RankTrace(
            rank=None,
            world_size=None,
            host=self._text("TARGET_INFO_SYSTEM_ENV", "value", "name = 'Hostname'"),
            device=self._text("TARGET_INFO_GPU", "name", "1"),
            origin_s=origin_s + self._started_s(),
            names=list(self._names),
            timeline=timeline,
            launches=self._launches(),
            steps=steps,
            messages=messages.numbered(origin_s),
            message_count=messages.count,
            memory=[],
            is_gpu=len(timeline) > 0,
            events=len(timeline) + len(spans),
            bytes_read=self._size,
            operations=Timeline(),
            spans=spans,
            problems=self.problems,
        )

    def _timeline(self) -> tuple[Timeline, Messages]:
        """Return kernels, copies and fills; communication kernels have neither group nor size in a report."""
        timeline, messages = Timeline(self._folder), Messages()
        for start, end, stream, title, number in self._kernels():
            kind = kind_of(title, "kernel")
            name = self._names.setdefault(title, len(self._names))
            timeline.add(start * _NANO, end * _NANO, name, stream, kind, number)
            if kind == COMMUNICATION:
                messages.add("", title, None, start * _NANO, end * _NANO, 0.0, 0)
        return timeline, messages

    def _kernels(self) -> Iterator[tuple[int, int, int, str, int]]:
        """Yield (start, end, stream, name, number of the launch) of kernels, copies and fills."""
        for table, name_column, prefix in _KERNELS:
            if table not in self._tables:
                continue
            has = self._columns(table)
            if not {"start", "end", "streamId"} <= has:
                self.problems.append(f"table {table} lacks start, end or streamId and is left out")
                continue
            chosen = [
                "start", '"end"', "streamId",
                next((column for column in (name_column, "shortName", "copyKind") if column in has), "NULL"),
                "correlationId" if "correlationId" in has else "-1",
            ]  # fmt: skip
            damaged = 0
            for start, end, stream, name, number in self._rows(table, chosen):
                if not isinstance(start, int) or not isinstance(end, int) or end < start:
                    damaged += 1
                    continue
                title = prefix + str(name) if prefix else self._string(name)
                yield start, end, _whole(stream), title, _whole(number)
            if damaged:
                self.problems.append(f"{damaged} rows of {table} have no valid time and are left out")

    def _launches(self) -> Spool:
        table, launches = "CUPTI_ACTIVITY_KIND_RUNTIME", Spool(LAUNCH, "number", self._folder)
        if table not in self._tables or not {"start", "correlationId"} <= self._columns(table):
            self.problems.append("the report has no CUDA API calls: idle time cannot be split by cause")
            return launches
        for start, correlation in self._rows(table, ["start", "correlationId"]):
            if isinstance(start, int) and (number := _whole(correlation)) >= 0:
                launches.add(number, start * _NANO)
        return launches

    def _ranges(self, origin_s: float) -> tuple[Timeline, list[StepRange]]:
        spans, steps = Timeline(self._folder, origin_s), {}
        threads: dict[Any, int] = {}
        has = self._columns("NVTX_EVENTS") if "NVTX_EVENTS" in self._tables else set()
        if {"start", "end"} <= has:
            chosen = ["start", '"end"', *(name if name in has else "NULL" for name in ("text", "textId", "globalTid"))]
            for start, end, text, text_id, thread in self._rows("NVTX_EVENTS", chosen):
                title = text if isinstance(text, str) else self._string(text_id)
                if not isinstance(start, int) or not isinstance(end, int) or end < start or not title:
                    continue
                begin_s, end_s = start * _NANO, end * _NANO
                name = self._names.setdefault(title, len(self._names))
                spans.add(begin_s, end_s, name, threads.setdefault(thread, len(threads)))
                if match := _STEP.fullmatch(title.strip()):
                    steps[int(match[1])] = StepRange(int(match[1]), begin_s - origin_s, end_s - origin_s)
        return spans, sorted(steps.values(), key=lambda step: step.begin_s)

    def _started_s(self) -> float:
        table = "TARGET_INFO_SESSION_START_TIME"
        if table not in self._tables or "utcEpochNs" not in self._columns(table):
            return 0.0
        row = self._connection.execute(f"SELECT utcEpochNs FROM {table}").fetchone()
        return row[0] * _NANO if row and isinstance(row[0], int) else 0.0

    def _text(self, table: str, column: str, condition: str) -> str:
        if table not in self._tables or column not in self._columns(table):
            return ""
        row = self._connection.execute(f"SELECT {column} FROM {table} WHERE {condition} LIMIT 1").fetchone()
        return str(row[0]) if row and row[0] is not None else ""

    def _string(self, value: object) -> str:
        return str(self._strings.get(value, "")) if isinstance(value, int) else str(value or "")

    def _columns(self, table: str) -> set[str]:
        return {str(row[1]) for row in self._connection.execute(f"PRAGMA table_info({table})")}

    def _rows(self, table: str, columns: list[str]) -> sqlite3.Cursor:
        # Names come from the constants above and are columns of the table.
        return self._connection.execute(f"SELECT {', '.join(columns)} FROM {table}")


def _whole(value: object) -> int:
    return value if isinstance(value, int) and -(2**31) <= value < 2**31 else -1
