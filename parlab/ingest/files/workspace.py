"""The directory of one import: files that are needed until the import is stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from parlab.ingest.files.received import Refused


class Workspace:
    """A temporary directory and the two files in which points and compressed text are spooled."""

    def __init__(self, directory: Path, points: IO[bytes], pieces: IO[bytes]) -> None:
        self._directory = directory
        self._numbers = count(1)
        self.points = points
        self.pieces = pieces

    def new_path(self) -> Path:
        """Return a path in the directory that does not exist yet; its name does not depend on uploaded names."""
        return self._directory / f"file-{next(self._numbers)}"


@contextmanager
def open_workspace() -> Iterator[Workspace]:
    """Create a workspace and remove it afterwards. Raises Refused for an OSError within, such as a full disk."""
    try:
        with TemporaryDirectory(prefix="parlab-import-") as name:
            directory = Path(name)
            with (directory / "points").open("x+b") as points, (directory / "pieces").open("x+b") as pieces:
                yield Workspace(directory, points, pieces)
    except OSError as problem:
        reason = problem.strerror or problem
        raise Refused(f"the file could not be imported ({reason}); free disk space and try again") from problem
