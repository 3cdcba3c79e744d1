"""Files of runs, artifacts and the events of traces: on a disk, or in object storage. Only this module knows where.

A name is relative: `objects/ab/abcdef...`, or a folder `traces/ab/abcdef...`. With PARLAB_STORAGE_URL, files are sent
there when they are complete; the disk keeps what is not complete yet, a copy of traces that are looked at, and what was
stored before the setting.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import fsspec  # type: ignore[import-untyped]  # no stubs
from django.conf import settings

OBJECTS, TRACES = "objects", "traces"
KEPT = (OBJECTS, TRACES)
"""Folders of complete files; the others are of uploads that go on."""
MARKER = ".parlab"
COPY_S = 86_400
"""Time for which the disk keeps the copy of a trace that nobody looks at."""
READ_AHEAD_BYTES = 8 << 20
_DRAFT = ".part"
# A request that waits for storage which is away holds up others: it fails within seconds, and its sender tries again.
_QUICK = {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 1}}
_TRIES = 2


class Remote(NamedTuple):
    """Object storage: a file system of fsspec, and the place below which files are."""

    files: Any
    place: str

    def path(self, name: str) -> str:
        return f"{self.place}/{name}"


def root() -> Path:
    """Return the directory of the disk."""
    return Path(settings.ARTIFACTS_DIR)


def remote() -> Remote | None:
    """Return the object storage; None where files stay on the disk."""
    return _remote(settings.STORAGE_URL) if settings.STORAGE_URL else None


@lru_cache(maxsize=4)
def _remote(url: str) -> Remote:
    options = {"config_kwargs": _QUICK} if url.startswith("s3://") else {}
    files, place = fsspec.core.url_to_fs(url.rstrip("/"), use_listings_cache=False, **options)
    if options:
        files.retries = _TRIES
    return Remote(files, place)


@contextmanager
def _answering() -> Iterator[None]:
    """Turn what a client of object storage raises into an OSError, as a disk would."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"the object storage does not answer ({str(error)[:200]})", str(root())) from error


def file_store(name: str, draft: Path) -> None:
    """Give a complete file its name; the draft is gone afterwards."""
    target = remote()
    if target is None:
        (root() / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft.rename(root() / name)
        return
    with _answering():
        if not target.files.exists(target.path(name)):
            _mark(target)
            target.files.put_file(str(draft), target.path(name))
    draft.unlink(missing_ok=True)


def folder_store(name: str) -> None:
    """Send a folder that is complete on the disk to the object storage; the disk keeps a copy for some time."""
    target = remote()
    if target is not None:
        with _answering():
            _mark(target)
            for path in sorted((root() / name).iterdir()):
                target.files.put_file(str(path), target.path(f"{name}/{path.name}"))


def _mark(target: Remote) -> None:
    """Leave the file by which the place is known again."""
    if not target.files.exists(target.path(MARKER)):
        target.files.makedirs(target.place, exist_ok=True)
        target.files.pipe_file(target.path(MARKER), b"files of parlab\n")


def opened(name: str) -> IO[bytes]:
    """Open a file to read it; of object storage only the parts are fetched that are read. Raises FileNotFoundError."""
    path, target = root() / name, remote()
    if target is None or path.is_file():
        return path.open("rb")
    with _answering():
        file: IO[bytes] = target.files.open(target.path(name), "rb", block_size=READ_AHEAD_BYTES)
        return file


def read(name: str) -> bytes:
    """Return a small file. Raises FileNotFoundError."""
    with opened(name) as file, _answering():
        return file.read()


def folder(name: str) -> Path:
    """Return a folder on the disk, fetched there if it is in the object storage. Raises FileNotFoundError."""
    path, target = root() / name, remote()
    if path.is_dir() or target is None:
        if target is not None:
            path.touch()
        return path
    draft = path.with_name(f"{path.name}{_DRAFT}")
    with _answering():
        if not target.files.exists(target.path(name)):
            raise FileNotFoundError(errno.ENOENT, "the folder is not in the object storage", name)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True, mode=0o700)
        for file in target.files.ls(target.path(name), detail=False):
            target.files.get_file(file, str(draft / file.rpartition("/")[2]))
    with suppress(OSError):  # another process was faster
        draft.rename(path)
    return path


def file_remove(name: str) -> None:
    """Remove a file, if there is one."""
    (root() / name).unlink(missing_ok=True)
    target = remote()
    if target is not None:
        with _answering(), suppress(FileNotFoundError):
            target.files.rm_file(target.path(name))


def folder_remove(name: str) -> None:
    """Remove a folder, if there is one."""
    shutil.rmtree(root() / name, ignore_errors=True)
    target = remote()
    if target is not None:
        with _answering(), suppress(FileNotFoundError):
            target.files.rm(target.path(name), recursive=True)


def is_missing() -> bool:
    """Return whether the place of the files is not there, as a disk that is not mounted. Raises OSError."""
    target = remote()
    if target is None:
        return not (root() / OBJECTS).is_dir()
    with _answering():
        return not target.files.exists(target.path(MARKER))


def copies_prune() -> int:
    """Remove the copies of traces on the disk that nobody has looked at for COPY_S; return how many."""
    target, before, count = remote(), time.time() - COPY_S, 0
    if target is None:
        return 0
    for path in (root() / TRACES).glob("??/*"):
        name = path.relative_to(root()).as_posix()
        with _answering(), suppress(FileNotFoundError):
            if path.stat().st_mtime < before and target.files.exists(target.path(name)):
                shutil.rmtree(path)
                count += 1
    return count


def files_move() -> int:
    """Send the files that were stored on the disk before the setting to the object storage; return how many."""
    target, count = remote(), 0
    if target is None:
        raise ValueError("PARLAB_STORAGE_URL is not set; set it to a URL of fsspec, like s3://bucket/parlab")
    for path in _kept_on_disk():
        name = path.relative_to(root()).as_posix()
        with _answering():
            _mark(target)
            target.files.put_file(str(path), target.path(name))
        if name.startswith(OBJECTS):
            path.unlink(missing_ok=True)
        count += 1
    return count


def files_copy(directory: Path) -> None:
    """Copy all files to a directory, for a backup: those of the disk, also of uploads that go on, and the others."""
    if root().is_dir():
        shutil.copytree(root(), directory, ignore=shutil.ignore_patterns("drafts"), copy_function=_copy)
    target = remote()
    if target is None:
        return
    with _answering():
        for path in target.files.find(target.place):
            copy = directory / path.removeprefix(target.place).lstrip("/")
            if not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                target.files.get_file(path, str(copy))


def _copy(source: str, target: str) -> None:
    with suppress(FileNotFoundError):  # removed in the meantime: the server runs
        shutil.copy2(source, target)


def files_restore(directory: Path) -> None:
    """Bring all files of a backup back, to where files are stored now."""
    target = remote()
    if target is None:
        shutil.copytree(directory, root(), dirs_exist_ok=True)
        return
    with _answering():
        _mark(target)
        for path in sorted(each for each in directory.rglob("*") if each.is_file()):
            name = path.relative_to(directory)
            if _is_complete(name):
                target.files.put_file(str(path), target.path(name.as_posix()))
            else:
                (root() / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                shutil.copy2(path, root() / name)


def _kept_on_disk() -> Iterator[Path]:
    for path in sorted(root().rglob("*")):
        if path.is_file() and _is_complete(path.relative_to(root())):
            yield path


def _is_complete(name: Path) -> bool:
    """Return whether a file belongs to the storage; the others are of uploads and traces that still come."""
    return len(name.parts) > 2 and name.parts[0] in KEPT and name.parts[1] != "incoming"
