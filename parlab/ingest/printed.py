"""What a team's own command prints -> series and a summary, by the readers of `parlab.formats`. No database.

An attempt's output is read again from its beginning as it grows: readers keep state over many lines, workers die
between batches, and so the same output always gives the same figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import IO, Any, NamedTuple

import orjson

from parlab.formats.documents import Collector
from parlab.formats.logs import LOGS
from parlab.formats.records import Record
from parlab.formats.schema import Launch, Segment
from parlab.formats.sniff import HEAD_CHARACTERS, UNKNOWN, sniff
from parlab.ingest.events import LATEST_TIME
from parlab.ingest.imported_summary import segment_summary
from parlab.ingest.launches import Sections, resolved_of, runner_launch
from parlab.ingest.recording import Recorder, Recording
from parlab.series.columns import Columns
from parlab.series.store import Key
from runners.config import filled_fields
from runners.protocol import EVENT_LINE_LIMIT, EVENT_PREFIX

MAX_LINE = 1 << 20
"""A progress bar without any line end is cut here."""
_HEADS = 8
"""A training may print megabytes before its first step; the format is looked for in so many pieces of them."""
# What the node samples beside the training: a reader's figures never take their place.
_SAMPLED = frozenset({
    "gpu_util_pct", "memory_util_pct", "gpu_mem_bytes", "power_watts", "temperature_celsius", "sm_clock_hz",
    "memory_clock_hz",
})  # fmt: skip

Pieces = Callable[[], Iterable[bytes]]


class Printed(NamedTuple):
    """What the readers made of an output."""

    format: str
    segment: Segment
    """The last launch that printed a step: an output may hold several, after restarts."""
    launch: Launch
    recordings: list[Recording]
    refused: Counter[str]

    @property
    def last_step(self) -> int | None:
        """Highest step that was printed."""
        return max((r.last_step for r in self.recordings if r.last_step is not None), default=None)

    def series(self) -> Iterator[dict[Key, Columns]]:
        """Yield the points as the store takes them."""
        for recording in self.recordings:
            for found in recording.series():
                yield {key: columns for key, columns in found.items() if not is_sampled(key)}

    def summary(self, resolved: Sections) -> dict[str, Any]:
        """Summarise the last launch as that of an imported file."""
        found = segment_summary(self.segment, resolved, self.recordings[-1])
        if self.segment.steps and self.segment.steps.total:
            found["steps"] = {**found.get("steps", {}), "total": self.segment.steps.total}
        # How it ended is what its processes say, not what its log looks like.
        return {name: value for name, value in found.items() if name != "end"} | {"read_by": self.format}


def is_sampled(key: Key) -> bool:
    """Tell whether a series comes from beside the training, whatever the training prints."""
    return key[1] < 0 or key[0] in _SAMPLED


def read(pieces: Pieces, spool: IO[bytes], *, is_whole: bool) -> Printed | None:
    """Read an output, from the beginning; None where no reader knows it or it has printed no step yet.

    `pieces` starts over each time it is called; `spool` holds the points. An unfinished last line counts only where the
    output is whole.
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
    return Printed(format, segment, runner_launch(segment.launch), recordings, recorder.refused)


def sections_of(launch: Launch, resolved: Mapping[str, Any]) -> Sections:
    """Say what is known of a command's run: what its log says, and the fields that its command was filled with."""
    told = resolved_of(launch)
    for section, fields in filled_fields(resolved).items():
        told[section] = fields | told[section]
    return told


def _format(lines: Iterable[str]) -> str:
    stream = iter(lines)
    for _ in range(_HEADS):
        head, size = [], 0
        for line in stream:
            head.append(line)
            size += len(line)
            if size >= HEAD_CHARACTERS:
                break
        found = sniff(head, LOGS)
        if found != UNKNOWN or size < HEAD_CHARACTERS:
            return found
    return UNKNOWN


class _Lines:
    """The lines of an output that are no events, and the time of the event before the one that was taken last."""

    def __init__(self, pieces: Iterable[bytes], *, is_whole: bool) -> None:
        self._pieces = pieces
        self._is_whole = is_whole
        self._now: str | None = None

    def __iter__(self) -> Iterator[str]:
        rest = b""
        for piece in self._pieces:
            # A progress bar draws each of its states after a carriage return; readers see them one by one anyway.
            *lines, rest = (rest + piece).replace(b"\r", b"\n").split(b"\n")
            if len(rest) > MAX_LINE:
                lines, rest = [*lines, rest], b""
            yield from self._text(lines)
        if self._is_whole:
            yield from self._text([rest])

    def _text(self, lines: Iterable[bytes]) -> Iterator[str]:
        for line in lines:
            if line.startswith(EVENT_PREFIX) and len(line) < EVENT_LINE_LIMIT:
                self._hear(line)
            elif line:
                yield line[:MAX_LINE].decode("utf-8", "replace") + "\n"

    def _hear(self, line: bytes) -> None:
        try:
            time = orjson.loads(line).get("t")
        except (ValueError, AttributeError):
            return
        if isinstance(time, int | float) and 0 <= time < LATEST_TIME:
            self._now = datetime.fromtimestamp(time, UTC).isoformat()

    def dated(self, record: Record) -> Record:
        """Date a record by the node's clock, a second off at most: that of the log may be another or none."""
        if self._now is not None:
            record.time = self._now
        return record
