"""The code of an earlier revision of this repository."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from parlab.lab.management.commands.migrate import RELEASE_0_1

ROOT = Path(__file__).resolve().parents[2]


class NoHistory(Exception):
    """Raised where the earlier revisions are missing, as in an unpacked archive or a shallow clone."""


def earlier() -> str:
    """Return the revision of 0.1.0, from which upgrades are tested. Raises NoHistory."""
    try:
        return _git("rev-parse", "--verify", "--quiet", f"{RELEASE_0_1}^{{commit}}").decode().strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoHistory(f"this directory has no history with commit {RELEASE_0_1} (0.1.0)") from error


def extract(revision: str, directory: Path) -> Path:
    """Write the code of a revision to a directory and return it."""
    with tarfile.open(fileobj=BytesIO(_git("archive", revision))) as archive:
        archive.extractall(directory, filter="data")
    return directory


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout
