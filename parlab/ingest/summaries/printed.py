"""The output of engine `command` -> series and a summary, by the readers of `parlab.formats`. No database.

The output of an attempt is read from its beginning each time it grows. Readers keep state over many lines and workers
may die between batches, so this is what makes the figures depend on the output only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import IO, Any, NamedTuple

import orjson

from parlab.formats.documents.documents import Collector
from parlab.formats.grammar.records import Record
from parlab.formats.grammar.sniff import HEAD_CHARACTERS, UNKNOWN, sniff
from parlab.formats.logs.registry import LOGS
from parlab.formats.schema import Launch, Segment
from parlab.ingest.batches.events import LATEST_TIME
from parlab.ingest.files.recording import Recorder, Recording, packed_series
from parlab.ingest.readings.imported_summary import segment_summary
from parlab.ingest.readings.launches import Sections, resolved_of, runner_launch
from parlab.series.replacing import Rows
from parlab.series.store import Key
from runners.config import filled_fields
from runners.wire.protocol import EVENT_LINE_LIMIT, EVENT_PREFIX

MAX_LINE = 1 << 20
"""A progress bar without line ends is split at this size."""
_HEADS = 8
"""Number of pieces in which to look for the format, because much may be printed before the first step."""
# Metrics that the node samples; figures of a reader never replace them.
_SAMPLED = frozenset({
    "gpu_util_pct", "memory_util_pct", "gpu_mem_bytes", "power_watts", "temperature_celsius", "sm_clock_hz",
    "memory_clock_hz",
})  # fmt: skip

Pieces = Callable[[], Iterable[bytes]]


class Printed(NamedTuple):
    """What a reader made of an output."""

    format: str
    segment: Segment
    """The last launch that printed a step; after restarts an output contains several launches."""
    launch: Launch
    recordings: list[Recording]
    series: Rows
    """The points of all launches, without what the node samples."""
    refused: Counter[str]

    @property
    def last_step(self) -> int | None:
        return max((r.last_step for r in self.recordings if r.last_step is not None), default=None)

    def summary(self, resolved: Sections) -> dict[str, Any]:
        """Summarise the last launch like that of an imported file."""
        summary = segment_summary(self.segment, resolved, self.recordings[-1])
        if self.segment.steps and self.segment.steps.total:
            summary["steps"] = {**summary.get("steps", {}), "total": self.segment.steps.total}
        # How the run ended is decided by its processes, not by its log.
        return {name: value for name, value in summary.items() if name != "end"} | {"read_by": self.format}


def is_sampled(key: Key) -> bool:
    """Return whether a series is sampled by the node, whatever the training prints."""
    return key[1] < 0 or key[0] in _SAMPLED


def read(pieces: Pieces, spool: IO[bytes], *, is_whole: bool) -> Printed | None:
    """Read an output from the beginning; None if its format is unknown or it contains no step yet.

    Each call of `pieces` starts from the beginning; `spool` receives the points. An unfinished last line counts only
    if the output is complete.
    """
    format = _format(_Lines(pieces(), is_whole=is_whole))
    if format == UNKNOWN:
        return None
    lines = _Lines(pieces(), is_whole=is_whole)
    collector = Collector("output", format)
    recorder = Recorder(collector, spool)
    for record in LOGS[format].read(lines):
        recorder.add(lines.dated(record))
    recorder.finish()
    segments = collector.document(0).segments
    stepped = [index for index in sorted(recorder.recordings) if recorder.recordings[index].last_step is not None]
    if not stepped:
        return None
    segment = segments[stepped[-1]]
    recordings = [recorder.recordings[index] for index in stepped]
    keys = {key for recording in recordings for key in recording.series.keys if not is_sampled(key)}
    series = packed_series(recordings, keys, spool)
    return Printed(format, segment, runner_launch(segment.launch), recordings, series, recorder.refused)


def sections_of(launch: Launch, resolved: Mapping[str, Any]) -> Sections:
    """Return the settings of a command's run: those in its log, otherwise the fields filled into its command."""
    settings = resolved_of(launch)
    for section, fields in filled_fields(resolved).items():
        settings[section] = fields | settings[section]
    return settings


def _format(lines: Iterable[str]) -> str:
    stream = iter(lines)
    for _ in range(_HEADS):
        head, size = [], 0
        for line in stream:
            head.append(line)
            size += len(line)
            if size >= HEAD_CHARACTERS:
                break
        format = sniff(head, LOGS)
        if format != UNKNOWN or size < HEAD_CHARACTERS:
            return format
    return UNKNOWN


class _Lines:
    """The lines of an output that are not events, and the time of the event before the current line."""

    def __init__(self, pieces: Iterable[bytes], *, is_whole: bool) -> None:
        self._pieces = pieces
        self._is_whole = is_whole
        self._now: str | None = None

    def __iter__(self) -> Iterator[str]:
        rest = b""
        for piece in self._pieces:
            # A progress bar redraws after a carriage return; readers see each state as a line.
            *lines, rest = (rest + piece).replace(b"\r", b"\n").split(b"\n")
            if len(rest) > MAX_LINE:
                lines, rest = [*lines, rest], b""
            yield from self._decoded_lines(lines)
        if self._is_whole:
            yield from self._decoded_lines([rest])

    def _decoded_lines(self, lines: Iterable[bytes]) -> Iterator[str]:
        for line in lines:
            if line.startswith(EVENT_PREFIX) and len(line) < EVENT_LINE_LIMIT:
                self._update_clock(line)
            elif line:
                yield line[:MAX_LINE].decode("utf-8", "replace") + "\n"

    def _update_clock(self, line: bytes) -> None:
        try:
            time = orjson.loads(line).get("t")
        except (ValueError, AttributeError):
            return
        if isinstance(time, int | float) and 0 <= time < LATEST_TIME:
            self._now = datetime.fromtimestamp(time, UTC).isoformat()

    def dated(self, record: Record) -> Record:
        """Set the time of a record by the node's clock, to within a second; the log may use another clock or none."""
        if self._now is not None:
            record.time = self._now
        return record
