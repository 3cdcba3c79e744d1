"""What a child of `ingest.confined` does with stores: it keeps what it has read, and answers with plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import stores_in
from .foreign import Store

_BLOCK = 2_000
_stores: list[Store] = []


def read(files: Mapping[str, str]) -> list[dict[str, Any]]:
    """Read the stores among files, and describe them without their points."""
    _stores[:] = stores_in({name: Path(path) for name, path in files.items()})
    return [_plain(store) for store in _stores]


def _plain(store: Store) -> dict[str, Any]:
    runs = []
    for run in store.runs:
        row = run._asdict()
        del row["points"]
        runs.append({**row, "artifacts": {name: str(path) for name, path in run.artifacts.items()}})
    return {**store._asdict(), "runs": runs, "files": list(store.files)}


def points(store: int, run: int) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the points of a run in blocks."""
    block: list[tuple[Any, ...]] = []
    for point in _stores[store].runs[run].points():
        block.append(tuple(point))
        if len(block) == _BLOCK:
            yield block
            block = []
    yield block
