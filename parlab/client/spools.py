"""The directories of streams: what one process reports to one run, kept on disk until the server has stored it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parlab.client import journal
from parlab.client.settings import home

# Closing any descriptor of a file gives up the process's lock on it, so a process does not test its own.
_OWN: set[str] = set()

_ABANDONED_S = 3600.0
"""Age of a directory without a description after which its process has died, and does not still create it."""


class Stream:
    """One directory: `open.json` describes the stream, `records` is its journal, `committed` a position."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def id(self) -> str:
        return self.path.name.removeprefix(".")

    @property
    def records(self) -> Path:
        return self.path / "records"

    @classmethod
    def create(cls, opening: dict[str, Any]) -> Stream:
        """Create and lock a directory; raises OSError where that cannot be written.

        It gets its name once it is locked and described: to another process that looks for leftovers, a directory
        with neither would be that of a process that has died.
        """
        path = home() / "spool" / uuid.uuid4().hex
        stream = cls(path.with_name(f".{path.name}"))
        stream.path.mkdir(parents=True, mode=0o700)
        stream.lock()
        (stream.path / "open.json").write_text(json.dumps(opening), encoding="utf-8")
        stream.path = stream.path.rename(path)
        return stream

    def opening(self) -> dict[str, Any]:
        """Return the description of the stream, empty if its process died while it wrote it."""
        try:
            opening = json.loads((self.path / "open.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return opening if isinstance(opening, dict) else {}

    def lock(self) -> bool:
        """Take the stream for this process; false if another process has it."""
        if self.id in _OWN:
            return False
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Locks of this kind are not inherited by forked workers, which may outlive the script.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        _OWN.add(self.id)
        return True

    def unlock(self) -> None:
        """Let another process take the stream."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            _OWN.discard(self.id)

    def committed(self) -> int:
        """Return the position up to which the server has stored the stream, as far as this directory knows."""
        try:
            return int((self.path / "committed").read_text())
        except (OSError, ValueError):
            return 0

    def acknowledge(self, position: int) -> None:
        """Delete what is no longer needed and note what the server has stored, if the full disk has room for it."""
        journal.forget(self.records, position)
        draft = self.path / "committed.draft"
        with contextlib.suppress(OSError):
            draft.write_text(str(position))
            draft.replace(self.path / "committed")

    @property
    def has_ended(self) -> bool:
        """Whether the last record is the report of an end."""
        last = journal.last_record(self.records)
        if last is None or last.kind is not journal.Kind.REPORT:
            return False
        with contextlib.suppress(ValueError):
            return bool(json.loads(last.payload).get("kind") == "end")
        return False

    @property
    def last_written_at(self) -> float:
        """When the process of the stream last recorded something (Unix time, s)."""
        starts = journal.segments(self.records)
        return _changed_at(journal.segment_path(self.records, starts[-1]) if starts else self.path / "open.json")

    def refuse(self, message: str) -> None:
        """Note that the server refuses the stream; `parlab sync` tries again."""
        (self.path / "refused").write_text(message, encoding="utf-8")

    @property
    def refusal(self) -> str:
        """Why the server has refused the stream, empty if it has not."""
        try:
            return (self.path / "refused").read_text(encoding="utf-8")
        except OSError:
            return ""

    @property
    def size(self) -> int:
        """Bytes that wait to be sent."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    def rename(self, **names: str) -> None:
        """Change the experiment or the ID of the run in the description; what a server has of it stays there."""
        opening = {**self.opening(), **{name: value for name, value in names.items() if value}}
        draft = self.path / "open.draft"
        draft.write_text(json.dumps(opening), encoding="utf-8")
        draft.replace(self.path / "open.json")
        with contextlib.suppress(FileNotFoundError):
            (self.path / "refused").unlink()

    def remove(self) -> None:
        """Delete the stream."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.unlock()


def leftovers() -> Iterator[Stream]:
    """Yield the streams of ended processes, oldest first, each locked; the caller unlocks or removes them."""
    try:
        paths = sorted((home() / "spool").iterdir(), key=_changed_at)
    except OSError:
        return
    for path in paths:
        stream = Stream(path)
        with contextlib.suppress(OSError):
            is_whole = not path.name.startswith(".") and bool(stream.opening())
            is_due = is_whole or time.time() - _changed_at(path) > _ABANDONED_S
            if not is_due or not stream.lock():
                continue
            if not is_whole:
                stream.remove()
            elif stream.opening():
                yield stream
            else:  # another process has just removed it
                stream.unlock()


def _changed_at(path: Path) -> float:
    """Return when a directory was last changed (Unix time, s); now if another process has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
