"""Files of tracked runs: bytes stored once under their SHA-256, paths as rows.

Complete files are in `lab.services.stored_files`. Below settings.ARTIFACTS_DIR are `drafts`, and `parts/UPLOAD/00001`
of uploads in several parts. A file is complete before its name exists (written to a draft, synced, then moved or sent),
so a power cut leaves no half object.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple

from django.conf import settings
from django.db import transaction

from parlab.lab.models import Artifact, TrackedRun
from parlab.lab.models.access.viewer import viewing
from parlab.lab.services import stored_files
from parlab.lab.services.access.quotas import OF_PROJECT, OF_USER, QuotaExceeded, holder_check, owner_of, quota_check
from parlab.lab.services.access.rights import project_of

BLOCK_BYTES = 1 << 20
MAX_PATH = 1_000
MAX_FILES = 100_000
ABANDONED_S = 2 * 86_400
"""Age of the last part of an upload that nobody completes any more."""
_OWNER = ".owner"
_UPLOAD_ID = re.compile(r"[0-9a-f]{32}")


class BadArtifact(ValueError):
    """A path or file that cannot be stored; the message names value and remedy."""


class Entry(NamedTuple):
    """A file or folder in a listing."""

    path: str
    is_dir: bool
    size: int


def clean_path(path: str) -> str:
    """Check a relative path; raises BadArtifact for one that is absolute, climbs out or is too long."""
    if not path or len(path) > MAX_PATH:
        raise BadArtifact(f"Invalid artifact path of {len(path)} characters; use 1 to {MAX_PATH}")
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or "\x00" in path or any(part in ("", ".", "..") for part in parts):
        raise BadArtifact(f"Invalid artifact path {path[:200]!r}; use a relative path without '..', '.' or backslashes")
    return path


def artifact_store(*, tracked: TrackedRun, path: str, blocks: Iterable[bytes]) -> Artifact:
    """Store a file of a run, replacing one of the same path. Raises BadArtifact beyond the limits."""
    path = clean_path(path)
    root_check()
    draft = _root() / "drafts" / secrets.token_hex(16)
    draft.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        sha256, size = _write(draft, blocks, f"Artifact {path[:200]}")
        with _within_quota():
            quota_check(owner=owner_of(tracked.run), project=project_of(tracked), added=size)
        stored_files.file_store(object_name(sha256), draft)
    finally:
        draft.unlink(missing_ok=True)
    return _row_store(tracked, path, sha256, size)


@contextmanager
def _within_quota() -> Iterator[None]:
    try:
        yield
    except QuotaExceeded as problem:
        raise BadArtifact(str(problem)) from problem


def _write(draft: Path, blocks: Iterable[bytes], label: str) -> tuple[str, int]:
    """Write a file and sync it; return SHA-256 and size. Raises BadArtifact beyond the limit."""
    digest, size = hashlib.sha256(), 0
    with draft.open("xb") as file:
        for block in blocks:
            size += len(block)
            if size > settings.ARTIFACT_LIMIT_MIB << 20:
                raise BadArtifact(
                    f"{label} is larger than {settings.ARTIFACT_LIMIT_MIB} MiB; store a smaller file or have"
                    " PARLAB_ARTIFACT_LIMIT_MIB raised"
                )
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest(), size


@transaction.atomic
def _row_store(tracked: TrackedRun, path: str, sha256: str, size: int) -> Artifact:
    TrackedRun.objects.select_for_update(no_key=True).get(pk=tracked.pk)
    if tracked.artifacts.count() >= MAX_FILES:
        raise BadArtifact(f"Run {tracked.uuid} has {MAX_FILES} artifacts; pack files into archives")
    if tracked.artifacts.filter(path__startswith=f"{path}/").exists():
        raise BadArtifact(f"Artifact path {path[:200]!r} is a folder of this run; use another file name")
    artifact, _ = Artifact.objects.update_or_create(
        tracked=tracked, path=path, defaults={"sha256": sha256, "size": size}
    )
    return artifact


def root_check() -> None:
    """Raise OSError if the directory with the artifacts is missing, as when its disk is not mounted."""
    is_gone = not settings.STORAGE_URL and stored_files.is_missing()
    if is_gone and Artifact._base_manager.exists():  # those of other projects, too
        raise FileNotFoundError(errno.ENOENT, "the directory of the artifacts is missing", str(_root()))


def blocks_of(path: Path) -> Iterator[bytes]:
    """Read a file in blocks."""
    with path.open("rb") as file:
        yield from blocks_in(file)


def blocks_in(file: IO[bytes]) -> Iterator[bytes]:
    """Read an open file in blocks."""
    while block := file.read(BLOCK_BYTES):
        yield block


def artifacts_delete(*, tracked: TrackedRun, path: str) -> int:
    """Delete a file or a folder of a run; returns how many files. Bytes that no row refers to any more go too.

    Raises OSError where the disk is away: the bytes would stay.
    """
    path = clean_path(path)
    root_check()
    with transaction.atomic():
        rows = tracked.artifacts.filter(path=path) | tracked.artifacts.filter(path__startswith=f"{path}/")
        digests = set(rows.values_list("sha256", flat=True))
        count, _ = rows.delete()
    with viewing(None):  # the same bytes may belong to runs of other projects
        used = set(Artifact.objects.filter(sha256__in=digests).values_list("sha256", flat=True))
    for sha256 in digests - used:
        stored_files.file_remove(object_name(sha256))
    return count


def listing(tracked: TrackedRun, folder: str = "") -> list[Entry]:
    """List the files and folders directly below a folder of a run, sorted by path."""
    prefix = f"{clean_path(folder)}/" if folder else ""
    entries: dict[str, Entry] = {}
    for path, size in tracked.artifacts.filter(path__startswith=prefix).values_list("path", "size"):
        name, slash, _ = path.removeprefix(prefix).partition("/")
        entries[name] = Entry(prefix + name, bool(slash), 0 if slash else size)
    return [entries[name] for name in sorted(entries)]


def object_name(sha256: str) -> str:
    """Return the name under which the bytes with this digest are stored."""
    return f"{stored_files.OBJECTS}/{sha256[:2]}/{sha256}"


def object_open(sha256: str) -> IO[bytes]:
    """Open the bytes with this digest. Raises FileNotFoundError."""
    return stored_files.opened(object_name(sha256))


def object_read(sha256: str) -> bytes:
    """Return the bytes with this digest, of a small file. Raises FileNotFoundError."""
    return stored_files.read(object_name(sha256))


def upload_create(*, tracked: TrackedRun) -> str:
    """Begin an upload in several parts; returns its ID."""
    holders, upload_id = (owner_of(tracked.run), project_of(tracked)), secrets.token_hex(16)
    _pending_check(holders)
    directory = _root() / "parts" / upload_id
    directory.mkdir(parents=True, mode=0o700)
    (directory / _OWNER).write_text(" ".join(map(str, (*holders, tracked.uuid))))
    return upload_id


def upload_run(*, upload_id: str) -> str | None:
    """Return the ID of the run that an upload was created for; None where an earlier release created it."""
    named = _upload(upload_id) / _OWNER
    words = named.read_text().split() if named.exists() else []
    return words[2] if len(words) > 2 else None


def part_store(*, upload_id: str, number: int, blocks: Iterable[bytes]) -> str:
    """Store one part (numbers from 1); returns its SHA-256. Raises BadArtifact for an unknown upload."""
    directory = _upload(upload_id)
    if not 1 <= number <= 10_000:
        raise BadArtifact(f"Invalid part number {number}; use 1 to 10000")
    draft = directory / f".{number}-{secrets.token_hex(4)}"
    if (directory / _OWNER).exists():
        _pending_check(_holders(directory / _OWNER))
    try:
        sha256, _ = _write(draft, blocks, f"Part {number}")
        draft.rename(directory / f"{number:05d}")
    finally:
        draft.unlink(missing_ok=True)
    return sha256


def upload_complete(*, tracked: TrackedRun, path: str, upload_id: str, numbers: Iterable[int]) -> Artifact:
    """Join the parts of an upload in the order of their numbers and store the file."""
    directory = _upload(upload_id)
    paths = [directory / f"{number:05d}" for number in sorted(numbers)]
    missing = [part.name for part in paths if not part.exists()]
    if missing or not paths:
        raise BadArtifact(f"Parts {', '.join(missing) or 'none'} of upload {upload_id} are missing; send them first")
    blocks = chain.from_iterable(map(blocks_of, paths))
    artifact = artifact_store(tracked=tracked, path=path, blocks=blocks)
    upload_abort(upload_id=upload_id)
    return artifact


def upload_abort(*, upload_id: str) -> None:
    """Delete the parts of an upload."""
    shutil.rmtree(_upload(upload_id), ignore_errors=True)


def uploads_prune() -> int:
    """Delete parts and drafts to which nothing was added for ABANDONED_S; return how many uploads and drafts."""
    before, count = time.time() - ABANDONED_S, stored_files.copies_prune()
    for path in [*(_root() / "parts").glob("*"), *(_root() / "drafts").glob("*")]:
        with suppress(FileNotFoundError):  # it was completed in the meantime
            if max(part.stat().st_mtime for part in (path, *path.rglob("*"))) < before:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                count += 1
    return count


def _holders(named: Path) -> tuple[int, ...]:
    """Return owner and project of an upload; those of an earlier release name only the owner."""
    return tuple(map(int, named.read_text().split()[:2]))


def _pending_check(holders: Sequence[int]) -> None:
    with _within_quota():
        for place, (quota, holder) in enumerate(zip((OF_USER, OF_PROJECT), holders, strict=False)):
            holder_check(quota=quota, holder=holder, added=_pending_bytes(place, holder))


def _pending_bytes(place: int, holder: int) -> int:
    """Return the size of the parts of uploads that an owner (place 0) or a project (1) has not completed."""
    total = 0
    for named in (_root() / "parts").glob(f"*/{_OWNER}"):
        with suppress(FileNotFoundError):
            if _holders(named)[place : place + 1] == (holder,):
                total += sum(part.stat().st_size for part in named.parent.iterdir())
    return total


def _upload(upload_id: str) -> Path:
    directory = _root() / "parts" / upload_id
    if not _UPLOAD_ID.fullmatch(upload_id) or not directory.is_dir():
        raise BadArtifact(f"Unknown upload {upload_id[:40]!r}; create it again")
    return directory


def _root() -> Path:
    return stored_files.root()
