"""The folder with the checkpoints of one run, on disk. Without torch: one process writes it, the others read.

FOLDER/lock                        held by the engine that writes, with its attempt and a counter that it raises
FOLDER/step-00000012-attempt-2/    a complete checkpoint
    manifest.json                  step, numbers of the training, and size and SHA-256 of every other file
FOLDER/.draft-...                  a checkpoint that is being written, or was when its attempt ended
FOLDER/damaged-...                 a checkpoint whose files are not those of its manifest
FOLDER/earlier-...                 a checkpoint of a training that was finished, before it was started once more
FOLDER/finished                    the training has made its last step and has ended

A checkpoint is written as a draft, synced and then renamed: a crash or a full disk loses the draft alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MANIFEST = "manifest.json"
FORMAT = 1
BEAT_S = 1.0
"""Seconds between two rises of the counter in the lock."""
STILL_S = 4.0
"""Time without a rise after which the holder on another host counts as dead: a lock of a file is not seen there."""
RELEASED_WITHIN_S = 5.0
"""Time for a holder on this host to go: the kernel may still be ending it."""
_NAME = re.compile(r"step-(\d{8,10})-attempt-(\d+)")
_PIECE_BYTES = 1 << 20
_LOCK_BYTES = 256


class Taken(OSError):
    """Another attempt writes to the folder."""


class File(NamedTuple):
    bytes: int
    sha256: str


class Checkpoint(NamedTuple):
    """A checkpoint on disk, as its manifest describes it."""

    path: Path
    step: int
    attempt: int
    facts: dict[str, Any]
    """What the engine stored beside its files."""
    files: dict[str, File]
    at: float = 0.0
    """When its manifest was written (Unix time)."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


class Lock:
    """The lock of one attempt on a folder.

    It goes with the process. It may not be seen on another host: there the counter in the file tells whether its holder
    is alive.
    """

    def __init__(self, path: Path, attempt: int) -> None:
        self.path, self._attempt = path, attempt
        self.token = ""
        self._descriptor = -1
        self._has_left = threading.Event()

    def take(self, within_s: float | None = None) -> None:
        """Take it, within RELEASED_WITHIN_S by default. Raises Taken, or OSError."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            self._wait_for_lock(descriptor, RELEASED_WITHIN_S if within_s is None else within_s)
            self._wait_for_other_host()
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor, self.token = descriptor, secrets.token_hex(4)
        self._beat(0)

    def start_beating(self) -> None:
        """Raise the counter from now on, in a thread: a file system that hangs must not hold the caller."""
        threading.Thread(target=self._beat_on, name="checkpoint-lock", daemon=True).start()

    def leave(self) -> None:
        """Let another attempt have it."""
        if self._descriptor < 0 or self._has_left.is_set():
            return
        self._has_left.set()
        with contextlib.suppress(OSError):
            self._write({})
            # Not closed: the thread may be about to write, and the number of the file could be that of another one.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    @property
    def is_mine(self) -> bool:
        """Whether no other attempt has taken it while this process was stopped."""
        return self.holder().get("token") == self.token

    def holder(self) -> dict[str, Any]:
        """Return who has taken it last; empty once it was left."""
        try:
            content = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _beat_on(self) -> None:
        count = 0
        while not self._has_left.wait(BEAT_S):
            count += 1
            if not self.is_mine:
                return
            with contextlib.suppress(OSError):
                self._beat(count)

    def _beat(self, count: int) -> None:
        own = {"token": self.token, "attempt": self._attempt, "host": socket.gethostname(), "pid": os.getpid()}
        self._write({**own, "count": count})

    def _write(self, content: Mapping[str, Any]) -> None:
        # One write of a few bytes over the last one: readers see the old content or the new.
        os.pwrite(self._descriptor, json.dumps(content).ljust(_LOCK_BYTES).encode(), 0)

    def _wait_for_lock(self, descriptor: int, within_s: float) -> None:
        until = time.monotonic() + within_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > until:
                    raise Taken(f"{_words(self.holder())} writes checkpoints there; end it first") from error
                time.sleep(0.05)
            else:
                return

    def _wait_for_other_host(self) -> None:
        first = self.holder()
        if not first or first.get("host") == socket.gethostname():
            return
        until = time.monotonic() + STILL_S
        while time.monotonic() < until:
            time.sleep(0.1)
            now = self.holder()
            if not now:
                return
            if now.get("count") != first.get("count"):
                raise Taken(f"{_words(now)} writes checkpoints there; end it first")


class Folder:
    def __init__(self, path: Path, attempt: int = 1) -> None:
        self.path, self.attempt = path, attempt
        self._lock = Lock(path / "lock", attempt)

    # --- the writer --------------------------------------------------------------------------------------------------

    def take(self) -> None:
        """Become the only writer, and delete the drafts of earlier ones. Raises Taken, or OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock.take()
        self._lock.start_beating()
        for path in self.path.glob(".draft-*"):
            shutil.rmtree(path, ignore_errors=True)

    @property
    def was_used(self) -> bool:
        """Whether an attempt has ever taken the folder."""
        return self._lock.path.exists()

    def leave(self) -> None:
        """Let another attempt write."""
        self._lock.leave()

    def draft_name(self, step: int) -> str:
        return f".draft-{self._lock.token}-{_name(step, self.attempt)}"

    def seal(self, draft: Path, step: int, facts: Mapping[str, Any], files: Mapping[str, File]) -> Checkpoint:
        """Write the manifest of a draft whose files are on disk, and give it its name. Raises OSError or Taken."""
        at = round(time.time(), 3)
        manifest = {
            "format": FORMAT,
            "step": step,
            "attempt": self.attempt,
            "at": at,
            "facts": dict(facts),
            "files": {name: list(file) for name, file in sorted(files.items())},
        }
        with open(draft / MANIFEST, "w") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        for directory in {draft, *((draft / name).parent for name in files)}:
            sync_directory(directory)
        if not self._lock.is_mine:
            raise Taken(f"another attempt writes to {self.path} now: {_words(self._lock.holder())}")
        target = self.path / _name(step, self.attempt)
        aside = self.path / f".draft-{self._lock.token}-replaced"
        if target.exists():
            target.rename(aside)
        draft.rename(target)
        sync_directory(self.path)
        shutil.rmtree(aside, ignore_errors=True)
        return Checkpoint(target, step, self.attempt, dict(facts), dict(files), at)

    def prune(self, keep: int) -> None:
        """Delete what was set aside, and all but the newest complete checkpoints."""
        for path in [
            *self.path.glob("damaged-*"),
            *self.path.glob("earlier-*"),
            *(old.path for old in self.complete()[keep:]),
        ]:
            # Under another name first: a checkpoint that is half deleted must not look like one.
            dropped = self.path / f".draft-{self._lock.token}-dropped-{path.name}"
            with contextlib.suppress(OSError):
                path.rename(dropped)
                shutil.rmtree(dropped)

    def set_aside(self, checkpoint: Checkpoint, why: str = "damaged") -> None:
        """Rename a checkpoint, so that it is neither loaded nor counted."""
        with contextlib.suppress(OSError):
            checkpoint.path.rename(self.path / f"{why}-{checkpoint.path.name}")

    def mark_finished(self) -> None:
        """Record that the training is over: an attempt after that is a new one."""
        with contextlib.suppress(OSError):
            (self.path / "finished").touch()

    def start_anew(self) -> bool:
        """Set the checkpoints of a finished training aside; return whether it was finished."""
        marker = self.path / "finished"
        if not marker.exists():
            return False
        for checkpoint, _ in self.checkpoints():
            self.set_aside(checkpoint, "earlier")
        marker.unlink()
        return True

    # --- the readers -------------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[tuple[Checkpoint, str]]:
        """Return all checkpoints, the newest first, each with what is wrong with its manifest or sizes."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for path in self.path.iterdir():
                if (match := _NAME.fullmatch(path.name)) and path.is_dir():
                    found.append(_read(path, int(match[1]), int(match[2])))
        return sorted(found, key=lambda row: (row[0].step, row[0].attempt), reverse=True)

    def complete(self) -> list[Checkpoint]:
        """Return the checkpoints whose files have the sizes of their manifests, the newest first."""
        return [checkpoint for checkpoint, problem in self.checkpoints() if not problem]

    def has_complete_since(self, at: float) -> bool:
        """Return whether this attempt has completed a checkpoint since a time."""
        return any(saved.attempt == self.attempt and saved.at >= at for saved in self.complete())


def damage(checkpoint: Checkpoint, names: Iterable[str]) -> str:
    """Read files of a checkpoint; return which one is not as it was written, empty if all are."""
    for name in names:
        expected = checkpoint.files[name]
        try:
            actual = digest(checkpoint.path / name)
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or error}"
        if actual != expected:
            return f"{name} has other content than when it was written"
    return ""


def digest(path: Path, *, sync: bool = False) -> File:
    """Return size and SHA-256 of a file, with `sync` once it is on disk."""
    total, value = 0, hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        if sync:
            os.fsync(file.fileno())
        while piece := file.read(_PIECE_BYTES):
            total += len(piece)
            value.update(piece)
    return File(total, value.hexdigest())


def listed(draft: Path) -> list[str]:
    """Return the files below a directory, relative to it and in a fixed order."""
    return sorted(str(path.relative_to(draft)) for path in draft.rglob("*") if path.is_file())


def share_of(names: Sequence[str], rank: int, world_size: int) -> list[str]:
    """Return the files that one rank reads."""
    return list(names[rank::world_size])


def sync_directory(path: Path) -> None:
    """Write the names in a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _name(step: int, attempt: int) -> str:
    return f"step-{step:08d}-attempt-{attempt}"


def _read(path: Path, step: int, attempt: int) -> tuple[Checkpoint, str]:
    nothing = Checkpoint(path, step, attempt, {}, {})
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        files = {str(name): File(int(size), str(sha)) for name, (size, sha) in manifest["files"].items()}
        at = float(manifest["at"])
        checkpoint = Checkpoint(path, int(manifest["step"]), attempt, dict(manifest["facts"]), files, at)
        is_readable = manifest["format"] == FORMAT and checkpoint.step == step
    except OSError as error:
        return nothing, f"{MANIFEST} cannot be read: {error.strerror or error}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return nothing, f"{MANIFEST} is not complete"
    if not is_readable:
        return nothing, f"{MANIFEST} is not one that this version writes"
    return checkpoint, _size_problem(checkpoint)


def _size_problem(checkpoint: Checkpoint) -> str:
    for name, file in checkpoint.files.items():
        try:
            size = (checkpoint.path / name).stat().st_size
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or error}"
        if size != file.bytes:
            return f"{name} has {size} bytes instead of {file.bytes}"
    return ""


def _words(holder: Mapping[str, Any]) -> str:
    if not holder:
        return "another attempt"
    return f"attempt {holder.get('attempt')} (process {holder.get('pid')} on {holder.get('host')})"
