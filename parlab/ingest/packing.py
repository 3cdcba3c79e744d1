"""Parts of a file, compressed piece by piece into another one, so that storing them only copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import zstandard

from parlab.series.log import CHUNK_BYTES


class Piece(NamedTuple):
    """One compressed piece: where its bytes stood, how many they were, and where it waits."""

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
    """Find where lines begin (1 is the first): {line: byte offset}; lines behind the end begin at it."""
    wanted = sorted({line for line in lines if line > 1})
    found = {line: 0 for line in lines if line <= 1}
    size = seen = at = 0
    with path.open("rb") as file:
        while at < len(wanted) and (block := file.read(1 << 20)):
            count = block.count(b"\n")
            position = -1
            counted = 0
            while at < len(wanted) and wanted[at] - 1 <= seen + count:
                # The newline number n ends line n, so line n + 1 begins behind it.
                while counted < wanted[at] - 1 - seen:
                    position = block.index(b"\n", position + 1)
                    counted += 1
                found[wanted[at]] = size + position + 1
                at += 1
            seen += count
            size += len(block)
    return found | dict.fromkeys(wanted[at:], path.stat().st_size)
