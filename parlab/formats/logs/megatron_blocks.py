"""Blocks of timers that later versions of Megatron-LM print: a range over the ranks per timer, or a time per rank."""

from __future__ import annotations

import re

from parlab.formats.grammar.cells import cell
from parlab.formats.grammar.records import Record, unread
from parlab.formats.grammar.units import to_float
from parlab.formats.logs.megatron_records import MAX_TIMERS, timer_record

_RANGE = re.compile(r"\s*([\w/.-][\w/ .-]{0,78}?) \.*: \(([^,()]{1,30}), ([^,()]{1,30})\)")
_RANK_TIME = re.compile(r"\s*rank\s+(\d{1,7}): (\S{1,30})\s*$")
_TIMER_HEAD = re.compile(r"\s{2,}([\w/][\w/ .-]{0,78}):\s*$")


class TimerBlock:
    """The block that is being read; `record` has its ranges, in seconds, or is None outside a block."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self._timer: str | None = None

    def open(self, line: int, iteration: int | None) -> Record:
        """Start a block and return its record."""
        self.record = Record("timers", line, {}, iteration=iteration, low={})
        return self.record

    def close(self) -> list[Record]:
        """End the block; return its record if it has timers."""
        record, self.record, self._timer = self.record, None, None
        return [record] if record is not None and record.values else []

    def feed(self, line: int, iteration: int | None, text: str) -> list[Record] | None:
        """Read one line of a block; return None for a line that ends it."""
        match = _RANGE.match(text)
        if match:
            return self._range(line, iteration, text, match)
        if self.record is None:
            return None
        match = _RANK_TIME.match(text)
        if match and self._timer:
            value = to_float(match[2])
            if value is None:
                return [unread(line, "timer without a finite number", text)]
            return timer_record(line, int(match[1]), None, iteration, [cell(self._timer, match[2])])
        match = _TIMER_HEAD.match(text)
        if match:
            self._timer = match[1].strip()
            return []
        return None

    def _range(self, line: int, iteration: int | None, text: str, match: re.Match[str]) -> list[Record]:
        low, high = to_float(match[2]), to_float(match[3])
        if low is None or high is None:
            return [unread(line, "timer without a finite number", text)]
        record = self.record or self.open(line, iteration)
        name = match[1].strip().replace(" ", "-")
        if len(record.values) < MAX_TIMERS and record.low is not None:
            record.values[name] = high / 1000.0
            record.low[name] = low / 1000.0
        return []
