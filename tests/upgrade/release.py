"""The code of an earlier revision of this repository."""

from __future__ import annotations

import re
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_RELEASE = re.compile(r"^## ([\d.]+), \d{4}-\d\d-\d\d\n\nCommit ([0-9a-f]{8,40})\.", re.MULTILINE)


class NoHistory(Exception):
    """Raised where the earlier revisions are missing, as in an unpacked archive or a shallow clone."""


def last_release(changelog: str) -> tuple[str, str]:
    """Return version and commit of the newest release in the changelog; one that is unreleased has no date."""
    match = _RELEASE.search(changelog)
    assert match is not None, "CHANGELOG.md names no release with a date and a commit"
    return match[1], match[2]


def earlier() -> str:
    """Return the revision of the last release, from which upgrades are tested. Raises NoHistory."""
    version, commit = last_release((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    try:
        return _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").decode().strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoHistory(f"this directory has no history with commit {commit} ({version})") from error


def extract(revision: str, directory: Path) -> Path:
    """Write the code of a revision to a directory and return it."""
    with tarfile.open(fileobj=BytesIO(_git("archive", revision))) as archive:
        archive.extractall(directory, filter="data")
    return directory


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout
