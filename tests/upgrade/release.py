"""The code of an earlier revision of this repository."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIGRATIONS = "parlab/*/migrations/0*.py"
BACK = 4
"""Migrations that lie between the revision chosen by itself and this one, at least."""


class NoHistory(Exception):
    """Raised where the earlier revisions are missing, as in an unpacked archive or a shallow clone."""


def earlier() -> str:
    """Return the newest revision that lacks the last migrations. Raises NoHistory."""
    try:
        added = _git("log", "--diff-filter=A", "--format=%H", f"-{BACK}", "HEAD", "--", MIGRATIONS).decode().split()
        return _git("rev-parse", "--verify", "--quiet", f"{added[BACK - 1]}^").decode().strip()
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        raise NoHistory(f"this directory has no history of {BACK} migrations") from error


def extract(revision: str, directory: Path) -> Path:
    """Write the code of a revision to a directory and return it."""
    with tarfile.open(fileobj=BytesIO(_git("archive", revision))) as archive:
        archive.extractall(directory, filter="data")
    return directory


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout
