"""The stores among files, read in a child: databases, YAML and packed records of unknown origin."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from parlab.ingest.confined import Confined, Unreadable
from parlab.ingest.files.received import Refused
from parlab.tracking.point import Point

from .foreign import ForeignRun, Store

_NAMED = re.compile(r"(?:^|/)meta\.yaml$|\.wandb$|tfevents[^/]*$|(?:^|/)(?:meta|seqs)/chunks/|_part_\d+\.parquet$")
_DATABASE = b"SQLite format 3\x00"


def read_confined(files: Mapping[str, Path]) -> list[Store]:
    """Return the stores among files, {path: file}; their points are read from the same child. Raises Refused."""
    if not any(_NAMED.search(name) or _is_database(path) for name, path in files.items()):
        return []
    child = Confined()
    try:
        rows = child.call("parlab.tracking.stores.in_child:read", {name: str(path) for name, path in files.items()})
    except Unreadable as problem:
        raise Refused(str(problem)) from problem
    return [_store(child, number, row) for number, row in enumerate(rows)]


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_DATABASE)) == _DATABASE


def _store(child: Confined, number: int, row: Mapping[str, Any]) -> Store:
    runs = [
        ForeignRun(
            **{**run, "artifacts": {name: Path(path) for name, path in run["artifacts"].items()}},
            points=partial(_points, child, number, place),
        )
        for place, run in enumerate(row["runs"])
    ]
    return Store(**{**row, "runs": runs, "files": frozenset(row["files"])})


def _points(child: Confined, store: int, run: int) -> Iterator[Point]:
    try:
        for block in child.items("parlab.tracking.stores.in_child:points", store, run):
            yield from (Point(*values) for values in block)
    except Unreadable as problem:
        raise Refused(str(problem)) from problem
