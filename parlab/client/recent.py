"""The output that a process has written last, in memory: shipping it need not read the disk and check each record."""

from __future__ import annotations

import threading
from collections import deque

from parlab.client.journal import HEADER

BLOCK_BYTES = 1 << 20
BLOCKS = 8


class _Block:
    """Consecutive records of output and their positions in the journal."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.pieces: list[bytes] = []
        self.size = 0

    def begin_at(self, position: int) -> None:
        """Leave out the records before a position, where a record begins."""
        count = 0
        while self.start < position and count < len(self.pieces):
            self.start += HEADER.size + len(self.pieces[count])
            self.size -= len(self.pieces[count])
            count += 1
        del self.pieces[:count]


class Recent:
    """The last blocks of output; what is older is read from the journal."""

    def __init__(self, lock: threading.Lock) -> None:
        """Callers of `add` must hold `lock`."""
        self._lock = lock
        self._blocks: deque[_Block] = deque([_Block(0)], maxlen=BLOCKS)
        self._last = self._blocks[-1]

    def add(self, position: int, data: bytes) -> None:
        """Note a record that has been written at a position."""
        last = self._last
        if position != last.end or last.size + len(data) > BLOCK_BYTES:
            self._last = last = _Block(position)
            self._blocks.append(last)
        last.pieces.append(data)
        last.size += len(data)
        last.end = position + HEADER.size + len(data)

    def read(self, position: int, limit: int) -> tuple[list[bytes], int] | None:
        """Return the output from a position in pieces of at most BLOCK_BYTES, and where it ends; None if unknown."""
        selected: list[list[bytes]] = []
        end, size = position, 0
        with self._lock:
            while self._blocks and self._blocks[0].end <= position and self._blocks[0] is not self._last:
                self._blocks.popleft()
            for block in self._blocks:
                if not selected and block.start < position:
                    block.begin_at(position)
                if block.start != end or size + block.size > limit:
                    break
                if block.pieces:
                    selected.append(block.pieces[:])
                    end, size = block.end, size + block.size
        return ([b"".join(pieces) for pieces in selected], end) if selected else None
