"""Ranges of a file, compressed in pieces into a spool file, so that storing them only copies bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import zstandard

from parlab.series.log import CHUNK_BYTES


class Piece(NamedTuple):
    """A compressed piece: position and size of its bytes in the file, offset and size in the spool."""

    position: int
    size: int
    offset: int
    packed: int


class Packed:
    """A range of a file as compressed pieces of CHUNK_BYTES each."""

    def __init__(self, spool: IO[bytes]) -> None:
        self._spool = spool
        self.pieces: list[Piece] = []

    def rows(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield position, size and the compressed bytes of each piece."""
        for piece in self.pieces:
            self._spool.seek(piece.offset)
            yield piece.position, piece.size, self._spool.read(piece.packed)


def pack(path: Path, begin: int, end: int, spool: IO[bytes]) -> Packed:
    """Compress the bytes from `begin` to `end` of a file into the spool; positions count from 0 at `begin`."""
    packed = Packed(spool)
    compressor = zstandard.ZstdCompressor(level=1)
    with path.open("rb") as file:
        file.seek(begin)
        position = 0
        while position < end - begin:
            data = file.read(min(CHUNK_BYTES, end - begin - position))
            if not data:
                break
            squeezed = compressor.compress(data)
            packed.pieces.append(Piece(position, len(data), spool.seek(0, 2), len(squeezed)))
            spool.write(squeezed)
            position += len(data)
    return packed


def line_offsets(path: Path, lines: Sequence[int]) -> dict[int, int]:
    """Return the byte offset of each line (1 is the first): {line: offset}; lines after the end start at the end."""
    targets = sorted({line for line in lines if line > 1})
    offsets = {line: 0 for line in lines if line <= 1}
    size = newlines = next_target = 0
    with path.open("rb") as file:
        while next_target < len(targets) and (block := file.read(1 << 20)):
            count = block.count(b"\n")
            position = -1
            counted = 0
            while next_target < len(targets) and targets[next_target] - 1 <= newlines + count:
                # The n-th newline ends line n, so line n + 1 starts after it.
                while counted < targets[next_target] - 1 - newlines:
                    position = block.index(b"\n", position + 1)
                    counted += 1
                offsets[targets[next_target]] = size + position + 1
                next_target += 1
            newlines += count
            size += len(block)
    return offsets | dict.fromkeys(targets[next_target:], path.stat().st_size)
