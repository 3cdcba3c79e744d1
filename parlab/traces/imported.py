"""Which tool wrote a trace, by the first bytes of the file."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from . import flight, nsight
from .reading import RankTrace, read_trace

HEAD_BYTES = 4096


def read_any(file: IO[bytes], folder: Path | None = None) -> RankTrace:
    """Read a trace of torch.profiler, Nsight Systems or NCCL's flight recorder. Raises chunks.BadTrace.

    `folder` is where events are written that do not fit into memory; by default that of temporary files.
    """
    head = file.read(HEAD_BYTES)
    file.seek(0)
    if head.startswith(nsight.SIGN):
        return nsight.read_nsight(file, folder)
    return flight.read_dump(file) if flight.is_dump(head) else read_trace(file, folder)
