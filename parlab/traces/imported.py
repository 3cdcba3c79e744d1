"""Which tool wrote a trace, by the first bytes of the file."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from . import flight, nsight
from .lanes import store
from .reading import RankTrace, read_trace
from .stored import analysis_of

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


def read_into(path: str, folder: str, lanes: str) -> dict[str, Any]:
    """Read the trace in a file, write its lanes to a directory, and return its analysis as plain values."""
    with Path(path).open("rb") as file:
        trace = read_any(file, Path(folder))
    analysis = analysis_of(trace).model_dump(mode="json")
    store(trace, Path(lanes))
    return analysis
