"""Output of a node as it grows: what was appended since the last look."""

from __future__ import annotations

from collections.abc import Iterator

from parlab.series import log
from parlab.series.streams import Joiner


class Follower:
    """Reads the output of one node of an attempt from its beginning, and goes on where it has stopped."""

    def __init__(self, attempt_id: int, node_rank: int) -> None:
        self._attempt_id, self._node_rank = attempt_id, node_rank
        self._position = self._read = 0
        self._joiner = Joiner()

    def more(self) -> Iterator[bytes]:
        """Yield what was appended since the last call, in whole lines of each stream as `log.read_log` does."""
        for chunk in log.chunks_from(self._attempt_id, self._node_rank, self._position):
            begin, size = self._read, len(chunk.data)
            # The last chunk grows until it is closed.
            is_closed = log.is_closed(size)
            self._position, self._read = (chunk.position + size, 0) if is_closed else (chunk.position, size)
            spans = [span._replace(begin=max(begin, span.begin)) for span in chunk.spans if span.end > begin]
            yield b"".join(self._joiner.add(chunk.data[span.begin : span.end], span) for span in spans)
