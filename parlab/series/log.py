"""Raw output of an attempt: append, read, and the last lines for a page. All other data derives from it."""

import heapq
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
import zstandard
from django.db.models import F, Max, OuterRef, Subquery
from numpy.typing import NDArray

from parlab.series import streams as logs
from parlab.series.log_lines import HELD_BYTES, Line
from parlab.series.models import LogChunk
from parlab.series.statements import Select, Upsert
from parlab.series.streams import NODE
from runners.wire.protocol import EVENT_LINE_LIMIT, EVENT_PREFIX

CHUNK_BYTES = 256 * 1024
GROW_BYTES = 16 * 1024
"""Size from which a row is not written again: each append to the last row leaves a dead one behind, as large as it was.
It is more than EVENT_LINE_LIMIT."""
TAIL_SCAN_BYTES = 16 << 20
"""Maximum number of bytes at the end of a log that a page scans."""

_READ_CHUNKS = 8
_FIRST_NODES = 64
_EVENT_TIME = re.compile(rb'"t":(\d{1,11}(?:\.\d{1,9})?)')
_STORED_CHUNKS = 64
_NO_STAMPS: NDArray[np.float64] = np.empty((0, 2))


_WRITTEN = ("attempt_id", "node_rank", "position", "size", "data", "stamps", "streams")
_row = attrgetter(*_WRITTEN)
_write = Upsert(LogChunk, _WRITTEN, _WRITTEN[:3])
_by_keys = Select(LogChunk, _WRITTEN, ('"attempt_id"', '"node_rank"'))
_KEY = '("attempt_id" = %s AND "node_rank" = %s AND "position" = %s)'


class Output(NamedTuple):
    """Output of a node of an attempt, with `stamps`, pairs (offset, Unix time of printing), and streams of a Batch."""

    attempt_id: int
    data: bytes
    node_rank: int = 0
    stamps: Sequence[tuple[int, float]] = ()
    streams: Sequence[tuple[int, int, bool]] = ()


def append_log(
    attempt_id: int,
    data: bytes,
    *,
    node_rank: int = 0,
    stamps: Sequence[tuple[int, float]] = (),
    streams: Sequence[tuple[int, int, bool]] = (),
) -> bytes:
    """Append output of a node to the log of an attempt; return the `unfinished_line` of the node before the new data.

    `stamps` are pairs (offset in data, Unix time at which it was printed), `streams` are those of a Batch.
    """
    return append_logs([Output(attempt_id, data, node_rank, stamps, streams)])[0]


def append_logs(outputs: Sequence[Output]) -> list[bytes]:
    """Append output of different nodes to their logs with few queries; return the `unfinished_line` of each before."""
    last_rows = _last_chunks(outputs)
    unfinished, rows = [], list[LogChunk]()
    for output in outputs:
        last = last_rows.get((output.attempt_id, output.node_rank))
        held = b"" if last is None else zstandard.decompress(bytes(last.data))
        unfinished.append(unfinished_line(_with_chunk_before(last, held)))
        if output.data:
            rows += _extended(output, last, held)
    _write([_row(row) for row in rows])
    return unfinished


def _last_chunks(outputs: Sequence[Output]) -> dict[tuple[int, int], LogChunk]:
    """Return the last chunk of the log of each node, found in the index and read by its key."""
    if len(outputs) == 1:
        (output,) = outputs
        chunks = LogChunk.objects.filter(attempt_id=output.attempt_id, node_rank=output.node_rank)
        rows = list(chunks.order_by("-position")[:1])
    else:
        # The attempts are named in the subquery too, or it would be planned for all partitions.
        of_attempts = LogChunk.objects.filter(attempt_id__in={output.attempt_id for output in outputs})
        mine = of_attempts.filter(attempt_id=OuterRef("attempt_id"), node_rank=OuterRef("node_rank"))
        last = Subquery(mine.order_by("-position").values("position")[:1])
        first = of_attempts.filter(position=0).values_list("attempt_id", "node_rank", last)
        appended = {(output.attempt_id, output.node_rank) for output in outputs}
        # Runs over many nodes have more than SQLite combines in one condition.
        keys = [key for key in first if key[:2] in appended]
        conditions = " OR ".join([_KEY] * len(keys))
        last_rows = _by_keys(conditions, [value for key in keys for value in key]) if keys else []
        rows = [LogChunk(**dict(zip(_WRITTEN, row, strict=True))) for row in last_rows]
    return {(row.attempt_id, row.node_rank): row for row in rows}


def _extended(output: Output, last: LogChunk | None, held: bytes) -> Iterator[LogChunk]:
    """Yield the chunks that an output changes: the last one, filled up, and those after it."""
    position = 0 if last is None else last.position
    stamped = _unpacked_stamps(last.stamps) if last is not None else _NO_STAMPS
    marks = logs.unpack(last.streams) if last is not None else []
    if is_closed(len(held)):
        position, held, stamped, marks = position + len(held), b"", _NO_STAMPS, []
    data, size = held + output.data, len(output.data)
    marks = logs.extended(marks, len(held), logs.marks_of(output.streams, size))
    new = [(len(held) + offset, at) for offset, at in output.stamps if 0 <= offset < size and math.isfinite(at)]
    stamped = np.concatenate([stamped, np.array(new, np.float64).reshape(-1, 2)])
    # Event lines compress better at this level than at the default, in half the time.
    compressor = zstandard.ZstdCompressor(level=1)
    for at in range(0, len(data), CHUNK_BYTES):
        piece = data[at : at + CHUNK_BYTES]
        yield LogChunk(
            attempt_id=output.attempt_id,
            node_rank=output.node_rank,
            position=position + at,
            size=len(piece),
            data=compressor.compress(piece),
            stamps=_stamps_of(stamped, at, len(piece)),
            streams=logs.pack(marks, at, len(piece)),
        )


def is_closed(size: int) -> bool:
    """Return whether a row of this size grows no more; only the last one of a node may."""
    return size >= min(GROW_BYTES, CHUNK_BYTES)


def store_log(attempt_id: int, rows: Iterable[tuple[int, int, bytes]]) -> None:
    """Replace the log of an attempt by packed chunks: position, size and zstd data of each CHUNK_BYTES."""
    LogChunk.objects.filter(attempt_id=attempt_id).delete()
    chunks = (LogChunk(attempt_id=attempt_id, position=at, size=size, data=data) for at, size, data in rows)
    while batch := list(islice(chunks, _STORED_CHUNKS)):
        LogChunk.objects.bulk_create(batch)


def _with_chunk_before(last: LogChunk | None, held: bytes) -> bytes:
    if last is None or not last.position or len(held) >= EVENT_LINE_LIMIT or b"\n" in held:
        return held
    # All chunks except the last are closed, so the previous chunk is longer than any event.
    chunks = LogChunk.objects.filter(attempt_id=last.attempt_id, node_rank=last.node_rank)
    before = chunks.filter(position__lt=last.position).latest("position")
    return zstandard.decompress(bytes(before.data)) + held


def unfinished_line(output: bytes) -> bytes:
    """Return the text after the last newline; a NUL byte stands for a line that is too long for an event."""
    line = output[output.rfind(b"\n") + 1 :]
    return line if len(line) < EVENT_LINE_LIMIT else b"\0"


def _stamps_of(stamps: NDArray[np.float64], begin: int, size: int) -> bytes:
    """Pack the stamps of a chunk; it begins with the last stamp before it."""
    offsets = stamps[:, 0]
    before = stamps[offsets <= begin][-1:]
    inside = stamps[(begin < offsets) & (offsets < begin + size)]
    times = np.concatenate([before, inside])
    times[:, 0] = np.maximum(times[:, 0] - begin, 0)
    return times.tobytes()


def unpack_stamps(data: bytes | memoryview) -> list[tuple[int, float]]:
    """Return the stamps of a chunk: pairs (offset, Unix time)."""
    return [(int(offset), at) for offset, at in _unpacked_stamps(data).tolist()]


def _unpacked_stamps(data: bytes | memoryview) -> NDArray[np.float64]:
    return np.frombuffer(bytes(data), np.float64).reshape(-1, 2)


def node_ranks(attempt_id: int) -> list[int]:
    """Return the ranks of the nodes that have printed something."""
    ranks = LogChunk.objects.filter(attempt_id=attempt_id, position=0).order_by("node_rank")
    return list(ranks.values_list("node_rank", flat=True))


def has_rank_streams(attempt_id: int) -> bool:
    return LogChunk.objects.filter(attempt_id=attempt_id).exclude(streams=b"").exists()


def read_log(attempt_id: int, *, node_rank: int | None = None, rank: int | None = None) -> Iterator[bytes]:
    """Yield the output of an attempt from its beginning: of one node, or of all nodes interleaved by time at line ends.

    With `rank`, only the stream of this rank. Output of a single stream is not changed; where a line that is longer
    than a record was interrupted by another stream, it is divided into two lines.
    """
    ranks = node_ranks(attempt_id) if node_rank is None else [node_rank]
    if len(ranks) > 1:
        for piece in log_pieces(attempt_id, ranks, rank=rank):
            yield piece.text
        return
    joiner = logs.Joiner()
    for chunk in chunks_from(attempt_id, ranks[0] if ranks else 0):
        if not chunk.streams and rank is None:
            yield chunk.data
        else:
            spans = (span for span in chunk.spans if rank is None or span.rank == rank)
            yield b"".join(joiner.add(chunk.data[span.begin : span.end], span) for span in spans)


class Chunk(NamedTuple):
    """Output of a node, unpacked."""

    position: int
    data: bytes
    stamps: bytes
    streams: bytes

    @property
    def spans(self) -> list[logs.Span]:
        return logs.spans(logs.unpack(self.streams), len(self.data))


_COLUMNS = ("position", "data", "stamps", "streams")


def _unpacked(row: tuple[int, bytes, bytes, bytes]) -> Chunk:
    return Chunk(row[0], zstandard.decompress(bytes(row[1])), bytes(row[2]), bytes(row[3]))


def chunks_from(attempt_id: int, node_rank: int, position: int = 0) -> Iterator[Chunk]:
    """Yield the chunks of a node from the one that begins at a position."""
    chunks = LogChunk.objects.filter(attempt_id=attempt_id, node_rank=node_rank).order_by("position")
    rows = list(chunks.filter(position__gte=position).values_list(*_COLUMNS)[:_READ_CHUNKS])
    while rows:
        for row in rows:
            yield (chunk := _unpacked(row))
            if not is_closed(len(chunk.data)):
                return  # what was appended since then does not begin at its end
        rows = list(chunks.filter(position__gt=rows[-1][0]).values_list(*_COLUMNS)[:_READ_CHUNKS])


class Piece(NamedTuple):
    """Whole lines that one stream printed, with the time of their first byte."""

    time: float
    node_rank: int
    number: int
    rank: int
    text: bytes


def log_pieces(attempt_id: int, ranks: Sequence[int], *, rank: int | None = None) -> Iterator[Piece]:
    """Yield the output of nodes, interleaved by time at line ends; with `rank`, only the stream of this rank."""
    for piece in heapq.merge(*(_pieces(attempt_id, node_rank, rank) for node_rank in ranks)):
        # The last line of a node may lack its end; another node's line must not continue it.
        yield piece if piece.text.endswith(b"\n") else piece._replace(text=piece.text + b"\n")


def _pieces(attempt_id: int, node_rank: int, rank: int | None) -> Iterator[Piece]:
    """Split the output of a node at its stamps and streams, each piece extended to the end of its last line."""
    time, held, held_time, held_rank, number = 0.0, b"", 0.0, NODE, 0
    joiner = logs.Joiner()
    for chunk in chunks_from(attempt_id, node_rank):
        marks = unpack_stamps(chunk.stamps)
        times = dict(marks)
        for span in logs.divided(chunk.spans, [offset for offset, _ in marks]):
            time = max(time, times.get(span.begin, time))  # clocks of nodes can be set back
            if rank is not None and span.rank != rank:
                continue
            if not held:
                held_time, held_rank = time, span.rank
            text = held + joiner.add(chunk.data[span.begin : span.end], span)
            cut = text.rfind(b"\n") + 1
            # The first line began earlier if a part of it was held.
            first = text.find(b"\n") + 1 if held else cut
            if cut:
                yield Piece(held_time, node_rank, number, held_rank, text[:first])
                number, held_time = number + 1, time
            if first < cut:
                yield Piece(time, node_rank, number, span.rank, text[first:cut])
                number += 1
            held, held_rank = text[cut:], span.rank if cut else held_rank
    if held:
        yield Piece(held_time, node_rank, number, held_rank, held)


def read_from(attempt_id: int, position: int, limit: int, *, node_rank: int = 0) -> bytes:
    """Return up to `limit` bytes of the output of a node from a position."""
    chunks = LogChunk.objects.filter(attempt_id=attempt_id, node_rank=node_rank)
    chunks = chunks.filter(position__gt=position - CHUNK_BYTES).order_by("position")
    output, end = bytearray(), position + limit
    for at, data in chunks.filter(position__lt=end).values_list("position", "data").iterator(_READ_CHUNKS):
        output += zstandard.decompress(bytes(data))[max(0, position - at) : max(0, end - at)]
    return bytes(output)


class Beginning(NamedTuple):
    """What the beginning of a log tells about the start of its ranks (Unix seconds)."""

    first_line: float | None = None
    """First output of a rank, or of any process where ranks have no streams."""
    started: float | None = None
    """The last event `start` of a rank: all ranks have met."""


def log_beginning(attempt_id: int) -> Beginning:
    """Return when the ranks of an attempt printed their first lines, from the first chunk of each node."""
    rows = LogChunk.objects.filter(attempt_id=attempt_id, position=0).order_by("node_rank")
    found = [_chunk_beginning(_unpacked(row)) for row in rows.values_list(*_COLUMNS)[:_FIRST_NODES]]
    lines = [each.first_line for each in found if each.first_line is not None]
    starts = [each.started for each in found if each.started is not None]
    return Beginning(min(lines, default=None), max(starts, default=None))


def _chunk_beginning(chunk: Chunk) -> Beginning:
    stamps, spans = unpack_stamps(chunk.stamps), chunk.spans
    has_ranks = any(span.rank != NODE for span in spans)
    first, starts = None, list[float]()
    for span in spans:
        if has_ranks and span.rank == NODE:
            continue
        at = span.begin
        for line in chunk.data[span.begin : span.end].split(b"\n"):
            is_sample = line.startswith(EVENT_PREFIX) and b'"event":"telemetry"' in line
            if first is None and line and not is_sample:
                first = _time_at(stamps, at) or None
            if line.startswith(EVENT_PREFIX) and b'"event":"start"' in line and (match := _EVENT_TIME.search(line)):
                starts.append(float(match[1]))
            at += len(line) + 1
    return Beginning(first, max(starts, default=None))


def log_size(attempt_id: int) -> int:
    """Return the size of the output of an attempt in bytes, of all nodes."""
    nodes = LogChunk.objects.filter(attempt_id=attempt_id).order_by().values("node_rank")
    return sum(nodes.annotate(end=Max(F("position") + F("size"))).values_list("end", flat=True))


def log_tail(attempt_id: int, lines: int = 200, *, node_rank: int | None = None, rank: int | None = None) -> list[str]:
    """Return the last lines of the log that are not events, for a page: of one node or rank, or of all nodes by time.

    Colors and control characters are removed, long lines are truncated with a note of their length. Scans at most
    the last TAIL_SCAN_BYTES, so that a page stays fast for any output. Lines of several nodes or streams begin with
    who printed them.
    """
    ranks = node_ranks(attempt_id) if node_rank is None else [node_rank]
    if len(ranks) > 1:
        return _merged_tail(attempt_id, lines, ranks, rank)
    last = list(islice(_text_from_end(attempt_id, ranks[0] if ranks else 0, TAIL_SCAN_BYTES, rank), lines))[::-1]
    return [line.for_page() if rank is not None else printer(line.rank) + line.for_page() for line in last]


def printer(rank: int, node_rank: int | None = None) -> str:
    """Return the beginning of a line that names who printed it; empty for the only node of a run."""
    if rank != NODE:
        return f"[rank {rank}] "
    return "" if node_rank is None else f"[node {node_rank}] "


def _merged_tail(attempt_id: int, lines: int, ranks: Sequence[int], rank: int | None) -> list[str]:
    # Read from the end of each node, only as far as its lines are among the newest of all nodes.
    scan_bytes = max(CHUNK_BYTES, TAIL_SCAN_BYTES // len(ranks))
    tails = [_from_end(attempt_id, node_rank, scan_bytes, rank) for node_rank in ranks]
    newest = list(islice(heapq.merge(*tails, key=itemgetter(0, 1), reverse=True), lines))
    return [printer(line.rank, node_rank) + line.for_page() for _, node_rank, line in reversed(newest)]


def _from_end(attempt_id: int, node_rank: int, scan_bytes: int, rank: int | None) -> Iterator[tuple[float, int, Line]]:
    """Yield time, node rank and text of the lines of a node, the last one first."""
    latest = math.inf
    for line in _text_from_end(attempt_id, node_rank, scan_bytes, rank):
        latest = min(latest, line.time)  # clocks of nodes can be set back
        yield latest, node_rank, line


def _text_from_end(attempt_id: int, node_rank: int, scan_bytes: int, rank: int | None) -> Iterator[Line]:
    """Yield the lines of a node that are not events, the last one first."""
    reader = _BackwardReader()
    scanned = 0
    for chunk in _chunks_from_end(attempt_id, node_rank):
        stamps = unpack_stamps(chunk.stamps)
        for span in reversed(chunk.spans):
            if rank is None or span.rank == rank:
                yield from reader.feed(chunk.data, span, stamps)
        scanned += len(chunk.data)
        if scanned >= scan_bytes:
            yield from reader.cut_off(scan_bytes // 2)
            return
    yield from reader.rest()


class _BackwardReader:
    """Reads spans from the last to the first, and joins the lines of a stream that several of them have parts of."""

    def __init__(self) -> None:
        self._line: Line | None = None
        """The first line so far, whose beginning may come with the next span."""
        self._is_continued = False

    def feed(self, data: bytes, span: logs.Span, stamps: Sequence[tuple[int, float]]) -> Iterator[Line]:
        """Take a span of a chunk; yield the lines that are complete."""
        if self._line is not None and self._line.rank != span.rank:
            yield from self.rest()
            self._line = None
        text = data[span.begin : span.end]
        if self._line is None:
            # The final newline does not start another line.
            text = text.removesuffix(b"\n")
            self._line = Line(b"", 0, rank=span.rank)
        lines = text.split(b"\n")
        end = span.begin + len(text)
        if len(lines) > 1:
            end -= len(lines[-1]) + 1
            last = self._with_beginning(lines[-1], _time_at(stamps, end + 1))
            if not last.is_event:
                yield last
            for line in reversed(lines[1:-1]):
                end -= len(line) + 1
                # Most lines are events; a function call for each would dominate the time.
                if not line.startswith(EVENT_PREFIX) or len(line) >= EVENT_LINE_LIMIT:
                    yield Line(line[:HELD_BYTES], len(line), time=_time_at(stamps, end + 1), rank=span.rank)
            self._line = Line(b"", 0, rank=span.rank)
        self._line = self._with_beginning(lines[0], _time_at(stamps, span.begin))
        self._is_continued = span.is_continued

    def rest(self) -> Iterator[Line]:
        """Yield the first line, which has no other beginning in this stream."""
        if self._line is not None and self._is_continued:
            beginning = logs.BROKEN + self._line.beginning
            yield self._line._replace(beginning=beginning, size=self._line.size + len(logs.BROKEN))
        elif self._line is not None and not self._line.is_event:
            yield self._line

    def cut_off(self, least: int) -> Iterator[Line]:
        """Yield the part of a line of at least so many bytes whose beginning is not read."""
        if self._line is not None and self._line.size >= least:
            yield self._line._replace(is_whole=False)

    def _with_beginning(self, text: bytes, time: float) -> Line:
        line = self._line or Line(b"", 0)
        return line._replace(beginning=(text + line.beginning)[:HELD_BYTES], size=len(text) + line.size, time=time)


def _time_at(marks: Sequence[tuple[int, float]], offset: int) -> float:
    index = bisect_right(marks, (offset, math.inf)) - 1
    return marks[index][1] if index >= 0 else 0.0


def _chunks_from_end(attempt_id: int, node_rank: int) -> Iterator[Chunk]:
    chunks = LogChunk.objects.filter(attempt_id=attempt_id, node_rank=node_rank).order_by("-position")
    # The last chunk is often enough, and a run may have a hundred nodes.
    rows = list(chunks.values_list(*_COLUMNS)[:1])
    while rows:
        yield from map(_unpacked, rows)
        position = rows[-1][0]
        rows = list(chunks.filter(position__lt=position).values_list(*_COLUMNS)[:_READ_CHUNKS]) if position else []
