"""Raw output of an attempt: append, read, and the last lines for a page. All other data derives from it."""

import heapq
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
import zstandard

from parlab.series.models import LogChunk
from runners.protocol import EVENT_LINE_LIMIT, EVENT_PREFIX

CHUNK_BYTES = 256 * 1024
SHOWN_CHARACTERS = 2_000
TAIL_SCAN_BYTES = 16 << 20
"""Maximum number of bytes at the end of a log that a page scans."""

_READ_CHUNKS = 8
_STORED_CHUNKS = 64
_HELD_BYTES = 16 * 1024
# Terminal commands (CSI and OSC); control characters except tab, and marks that change the direction of text.
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
_UNSEEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def append_log(attempt_id: int, data: bytes, *, node_rank: int = 0, stamps: Sequence[tuple[int, float]] = ()) -> bytes:
    """Append output of a node to the log of an attempt; return the `unfinished_line` of the node before the new data.

    `stamps` are pairs (offset in data, Unix time at which it was printed).
    """
    chunks = LogChunk.objects.filter(attempt_id=attempt_id, node_rank=node_rank)
    last = chunks.order_by("-position").first()
    held = b"" if last is None else zstandard.decompress(bytes(last.data))
    unfinished = unfinished_line(_with_chunk_before(last, held))
    if not data:
        return unfinished
    position = 0 if last is None else last.position
    stamped = unpack_stamps(last.stamps) if last is not None else []
    if len(held) >= CHUNK_BYTES:
        position, held, stamped = position + len(held), b"", []
    output = held + data
    stamped += [(len(held) + offset, at) for offset, at in stamps if 0 <= offset < len(data) and math.isfinite(at)]
    # Event lines compress better at this level than at the default, in half the time.
    compressor = zstandard.ZstdCompressor(level=1)
    pieces = ((at, output[at : at + CHUNK_BYTES]) for at in range(0, len(output), CHUNK_BYTES))
    LogChunk.objects.bulk_create(
        [
            LogChunk(
                attempt_id=attempt_id,
                node_rank=node_rank,
                position=position + at,
                size=len(piece),
                data=compressor.compress(piece),
                stamps=_stamps_of(stamped, at, len(piece)),
            )
            for at, piece in pieces
        ],
        update_conflicts=True,
        unique_fields=["attempt", "node_rank", "position"],
        update_fields=["size", "data", "stamps"],
    )
    return unfinished


def store_log(attempt_id: int, rows: Iterable[tuple[int, int, bytes]]) -> None:
    """Replace the log of an attempt by packed chunks: position, size and zstd data of each CHUNK_BYTES."""
    LogChunk.objects.filter(attempt_id=attempt_id).delete()
    chunks = (LogChunk(attempt_id=attempt_id, position=at, size=size, data=data) for at, size, data in rows)
    while batch := list(islice(chunks, _STORED_CHUNKS)):
        LogChunk.objects.bulk_create(batch)


def _with_chunk_before(last: LogChunk | None, held: bytes) -> bytes:
    if last is None or not last.position or len(held) >= EVENT_LINE_LIMIT or b"\n" in held:
        return held
    # All chunks except the last are full, so the previous chunk is longer than any event.
    position = last.position - CHUNK_BYTES
    before = LogChunk.objects.get(attempt_id=last.attempt_id, node_rank=last.node_rank, position=position)
    return zstandard.decompress(bytes(before.data)) + held


def unfinished_line(output: bytes) -> bytes:
    """Return the text after the last newline; a NUL byte stands for a line that is too long for an event."""
    line = output[output.rfind(b"\n") + 1 :]
    return line if len(line) < EVENT_LINE_LIMIT else b"\0"


def _stamps_of(stamps: Sequence[tuple[int, float]], begin: int, size: int) -> bytes:
    """Pack the stamps of a chunk; it begins with the last stamp before it."""
    before = [at for offset, at in stamps if offset <= begin]
    inside = [(offset - begin, at) for offset, at in stamps if begin < offset < begin + size]
    pairs = [(0, before[-1]), *inside] if before else inside
    return np.array(pairs, np.float64).tobytes()


def unpack_stamps(data: bytes | memoryview) -> list[tuple[int, float]]:
    """Return the stamps of a chunk: pairs (offset, Unix time)."""
    pairs = np.frombuffer(bytes(data), np.float64).reshape(-1, 2).tolist()
    return [(int(offset), at) for offset, at in pairs]


def node_ranks(attempt_id: int) -> list[int]:
    """Return the ranks of the nodes that have printed something."""
    ranks = LogChunk.objects.filter(attempt_id=attempt_id, position=0).order_by("node_rank")
    return list(ranks.values_list("node_rank", flat=True))


def read_log(attempt_id: int, *, node_rank: int | None = None) -> Iterator[bytes]:
    """Yield the output of an attempt from its beginning: of one node, or of all nodes interleaved by time at line ends.

    The output of an attempt on one node is not changed.
    """
    ranks = node_ranks(attempt_id) if node_rank is None else [node_rank]
    if len(ranks) > 1:
        yield from _merged(attempt_id, ranks)
        return
    for _, data, _ in _chunks(attempt_id, ranks[0] if ranks else 0):
        yield data


def _chunks(attempt_id: int, node_rank: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield position, unpacked data and stamps of the chunks of a node, the first one first."""
    chunks = LogChunk.objects.filter(attempt_id=attempt_id, node_rank=node_rank).order_by("position")
    rows = list(chunks.values_list("position", "data", "stamps")[:_READ_CHUNKS])
    while rows:
        for position, data, stamps in rows:
            yield position, zstandard.decompress(bytes(data)), bytes(stamps)
        if len(rows) < _READ_CHUNKS:
            return
        rows = list(chunks.filter(position__gt=rows[-1][0]).values_list("position", "data", "stamps")[:_READ_CHUNKS])


class _Piece(NamedTuple):
    """Whole lines that a node printed, with the time of their first byte."""

    time: float
    node_rank: int
    number: int
    text: bytes


def _merged(attempt_id: int, ranks: Sequence[int]) -> Iterator[bytes]:
    for piece in heapq.merge(*(_pieces(attempt_id, rank) for rank in ranks)):
        # The last line of a node may lack its end; another node's line must not continue it.
        yield piece.text if piece.text.endswith(b"\n") else piece.text + b"\n"


def _pieces(attempt_id: int, node_rank: int) -> Iterator[_Piece]:
    """Split the output of a node at its stamps, each piece extended to the end of its last line."""
    time, held, held_time, number = 0.0, b"", 0.0, 0
    for _, data, stamps in _chunks(attempt_id, node_rank):
        marks = unpack_stamps(stamps)
        bounds = [0, *(offset for offset, _ in marks if offset > 0), len(data)]
        times = dict(marks)
        for begin, end in pairwise(bounds):
            time = max(time, times.get(begin, time))  # clocks of nodes can be set back
            if not held:
                held_time = time
            text = held + data[begin:end]
            cut = text.rfind(b"\n") + 1
            # The first line began earlier if a part of it was held.
            first = text.find(b"\n") + 1 if held else cut
            if cut:
                yield _Piece(held_time, node_rank, number, text[:first])
                number, held_time = number + 1, time
            if first < cut:
                yield _Piece(time, node_rank, number, text[first:cut])
                number += 1
            held = text[cut:]
    if held:
        yield _Piece(held_time, node_rank, number, held)


def read_from(attempt_id: int, position: int, limit: int) -> bytes:
    """Return up to `limit` bytes of the output of an attempt from a position."""
    chunks = LogChunk.objects.filter(attempt_id=attempt_id, position__gt=position - CHUNK_BYTES).order_by("position")
    output, end = bytearray(), position + limit
    for at, data in chunks.filter(position__lt=end).values_list("position", "data").iterator(_READ_CHUNKS):
        output += zstandard.decompress(bytes(data))[max(0, position - at) : max(0, end - at)]
    return bytes(output)


def log_size(attempt_id: int) -> int:
    """Return the size of the output of an attempt in bytes, of all nodes."""
    last = LogChunk.objects.filter(attempt_id=attempt_id).order_by("node_rank", "-position")
    ends: dict[int, int] = {}
    for rank, position, size in last.values_list("node_rank", "position", "size"):
        ends.setdefault(rank, position + size)
    return sum(ends.values())


def log_tail(attempt_id: int, lines: int = 200, *, node_rank: int | None = None) -> list[str]:
    """Return the last lines of the log that are not events, for a page: of one node, or of all nodes by time.

    Colors and control characters are removed, long lines are truncated with a note of their length. Scans at most
    the last TAIL_SCAN_BYTES, so that a page stays fast for any output. Lines of several nodes begin with the rank of
    the node.
    """
    ranks = node_ranks(attempt_id) if node_rank is None else [node_rank]
    if len(ranks) > 1:
        return _merged_tail(attempt_id, lines, ranks)
    text = (line.for_page() for line in _text_from_end(attempt_id, ranks[0] if ranks else 0, TAIL_SCAN_BYTES))
    return list(islice(text, lines))[::-1]


def _merged_tail(attempt_id: int, lines: int, ranks: Sequence[int]) -> list[str]:
    # Read from the end of each node: the newest lines of all nodes, in the order in which they were printed.
    scan_bytes = max(CHUNK_BYTES, TAIL_SCAN_BYTES // len(ranks))
    tails = (_tail_of(attempt_id, lines, rank, scan_bytes) for rank in ranks)
    newest = heapq.nlargest(lines, (line for tail in tails for line in tail), key=lambda line: line[:3])
    return [f"[node {rank}] {text}" for _, rank, _, text in reversed(newest)]


def _tail_of(attempt_id: int, lines: int, node_rank: int, scan_bytes: int) -> list[tuple[float, int, int, str]]:
    """Return time, rank, number and text of the last lines of a node."""
    selected = list(islice(_text_from_end(attempt_id, node_rank, scan_bytes), lines))[::-1]
    return [(line.time, node_rank, number, line.for_page()) for number, line in enumerate(selected)]


class _Line(NamedTuple):
    """A line of any length, of which only the beginning is held."""

    beginning: bytes
    size: int
    is_whole: bool = True
    """False if the scan did not reach the beginning of the line."""
    time: float = 0.0
    """Unix time at which it was printed; 0 if unknown."""

    def for_page(self) -> str:
        text = self.beginning.decode("utf-8", "replace")
        if self.size <= _HELD_BYTES:
            # A progress bar overwrites itself after a carriage return: only its last state counts.
            text = text.rstrip("\r").rpartition("\r")[2]
        text = _UNSEEN.sub("", _ANSI.sub("", text))
        if self.size <= _HELD_BYTES and len(text) <= SHOWN_CHARACTERS:
            return text
        length = f"{self.size:,} bytes" if self.is_whole else f"more than {self.size:,} bytes, beginning not shown"
        return f"{text[:SHOWN_CHARACTERS]} … (line of {length})"


def line_for_page(line: bytes) -> str:
    """Format a line of output for a page: without terminal commands, truncated with a note if it is long."""
    return _Line(line[:_HELD_BYTES], len(line)).for_page()


def _text_from_end(attempt_id: int, node_rank: int, scan_bytes: int) -> Iterator[_Line]:
    """Yield the lines of a node that are not events, the last one first."""
    beginning, size, scanned = b"", 0, 0
    for data, stamps in _chunks_from_end(attempt_id, node_rank):
        # The final newline of the log does not start another line.
        chunk = data if scanned else data.removesuffix(b"\n")
        lines = chunk.split(b"\n")
        end = len(chunk)
        scanned += len(data)
        marks = unpack_stamps(stamps)
        if len(lines) > 1:
            beginning, size = (lines[-1] + beginning)[:_HELD_BYTES], len(lines[-1]) + size
            end -= len(lines[-1]) + 1
            if not _is_event(beginning, size):
                yield _Line(beginning, size, time=_time_at(marks, end + 1))
            for line in reversed(lines[1:-1]):
                end -= len(line) + 1
                # Most lines are events; a function call for each would dominate the time.
                if not line.startswith(EVENT_PREFIX) or len(line) >= EVENT_LINE_LIMIT:
                    yield _Line(line[:_HELD_BYTES], len(line), time=_time_at(marks, end + 1))
            beginning, size = b"", 0
        beginning, size = (lines[0] + beginning)[:_HELD_BYTES], len(lines[0]) + size
        if scanned >= scan_bytes:
            if size >= scan_bytes // 2:
                yield _Line(beginning, size, is_whole=False, time=_time_at(marks, 0))
            return
    if scanned and not _is_event(beginning, size):
        yield _Line(beginning, size)


def _time_at(marks: Sequence[tuple[int, float]], offset: int) -> float:
    index = bisect_right(marks, (offset, math.inf)) - 1
    return marks[index][1] if index >= 0 else 0.0


def _is_event(beginning: bytes, size: int) -> bool:
    return size < EVENT_LINE_LIMIT and beginning.startswith(EVENT_PREFIX)


def _chunks_from_end(attempt_id: int, node_rank: int) -> Iterator[tuple[bytes, bytes]]:
    chunks = LogChunk.objects.filter(attempt_id=attempt_id, node_rank=node_rank).order_by("-position")
    columns = ("position", "data", "stamps")
    rows = list(chunks.values_list(*columns)[:_READ_CHUNKS])
    while rows:
        for _, data, stamps in rows:
            yield zstandard.decompress(bytes(data)), bytes(stamps)
        rows = list(chunks.filter(position__lt=rows[-1][0]).values_list(*columns)[:_READ_CHUNKS])
