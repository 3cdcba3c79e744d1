"""`parlab follow` on TensorBoard's event files: each directory is a run, each of its files a stream of it."""

from __future__ import annotations

import hashlib
import json
import math
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parlab.client import environment, journal, lines
from parlab.client.command.events import Damaged, event_of, is_event_file, records
from parlab.client.http import Connection
from parlab.client.settings import Settings
from parlab.client.shipping import BATCH_BYTES

SCAN_S = 2.0
"""How often a directory is searched for new files."""
MAX_FILES = 1_000


class EventFile:
    """An event file as a stream: a position is an offset in the file."""

    def __init__(self, path: Path, connection: Connection, opening: Mapping[str, Any]) -> None:
        self._path, self._connection, self._opening = path, connection, dict(opening)
        key = hashlib.sha256(f"{opening['run_id']}\0{path.name}".encode()).hexdigest()[:32]
        self._address = f"/api/runs/{opening['run_id']}/streams/{key}/"
        self.position = -1
        self.run: dict[str, Any] = {}
        self._is_damaged = False

    def send(self) -> bool:
        """Send the records that are new; return whether there were any."""
        if self.position < 0:
            self._open()
        if self._is_damaged or self._path.stat().st_size <= self.position:
            return False
        output, settings, following = bytearray(), {}, self.position
        try:
            for record, end in records(self._path, self.position, BATCH_BYTES):
                event = event_of(record)
                settings.update(event.settings)
                output += b"".join(_lines(event.time, event.step, event.scalars))
                following = end
        except Damaged as problem:
            self._is_damaged = True
            sys.stderr.write(f"parlab: {self._path}: {problem}\n")
        if following == self.position:
            return False
        reports = [{"kind": "config", "config": _flat(settings)}] if settings else []
        self._post(bytes(output), reports, following)
        return True

    def beat(self) -> None:
        """Show that the file is being followed."""
        if self.position >= 0:
            self._post(b"", [], self.position)

    def finish(self, end: Mapping[str, Any]) -> None:
        """Send what is left and how the run ended."""
        while self.send():
            pass
        self._post(b"", [{"kind": "end", "at": time.time(), **end}], self.position)

    def _open(self) -> None:
        body = {**self._opening, "sent_at": time.time()}
        answer = self._connection.json("PUT", self._address, body)
        self.run, self.position = answer["run"], int(answer["committed"])

    def _post(self, output: bytes, reports: list[dict[str, Any]], following: int) -> None:
        body = b"".join(
            journal.encode(journal.Kind.OUTPUT, output[at : at + journal.MAX_RECORD_BYTES])
            for at in range(0, len(output), journal.MAX_RECORD_BYTES)
        )
        body += b"".join(journal.encode(journal.Kind.REPORT, json.dumps(report).encode()) for report in reports)
        answer, _ = self._connection.request("POST", f"{self._address}?position={self.position}&next={following}", body)
        self.position = int(json.loads(answer)["committed"])


class FollowedBoard:
    """A directory of event files, or one of them, that is followed as it grows."""

    def __init__(self, path: Path, login: Settings, *, experiment: str, name: str, run_id: str | None) -> None:
        self._path = path
        self._connection = Connection(login.url, login.token)
        self._experiment, self._name, self._run_id = experiment, name, run_id
        self._files: dict[Path, EventFile] = {}
        self._scanned_at = float("-inf")

    @property
    def run(self) -> dict[str, Any]:
        """The run of the first file."""
        return next((file.run for file in self._files.values() if file.run), {})

    def open(self) -> bool:
        """Look for event files; false while there is none."""
        self._scan()
        return bool(self._files)

    def send(self) -> bool:
        """Send what is new in all files; return whether there was anything."""
        if time.monotonic() - self._scanned_at > SCAN_S:
            self._scan()
        return sum(file.send() for file in self._files.values()) > 0

    def beat(self) -> None:
        """Show that the files are being followed."""
        for file in self._files.values():
            file.beat()

    def finish(self, end: Mapping[str, Any]) -> None:
        """Send what is left and how the runs ended."""
        self._scan()
        for file in self._files.values():
            file.finish(end)

    def _scan(self) -> None:
        self._scanned_at = time.monotonic()
        found = [self._path] if self._path.is_file() else sorted(self._path.rglob("*tfevents*"))
        paths = [path for path in found if path.is_file() and is_event_file(path)][:MAX_FILES]
        by_run: dict[Path, list[Path]] = {}
        for path in paths:
            by_run.setdefault(_directory(path, paths), []).append(path)
        for directory, own in by_run.items():
            for rank, path in enumerate(own):
                if path not in self._files:
                    opening = self._opening(directory, own[0], rank, is_only=len(by_run) == 1)
                    self._files[path] = EventFile(path, self._connection, opening)

    def _opening(self, directory: Path, first: Path, rank: int, *, is_only: bool) -> dict[str, Any]:
        place = f"{socket.gethostname()}\0{directory.resolve()}\0{first.name}"
        name = directory.relative_to(self._path).as_posix() if directory != self._path.parent else first.name
        name = directory.resolve().name if name == "." else name
        return {
            "run_id": (self._run_id if is_only else None) or hashlib.sha256(place.encode()).hexdigest()[:32],
            "experiment": self._experiment,
            "name": self._name if is_only and self._name else f"{self._name} {name}".strip(),
            "kind": "rank",
            "rank": rank,
            "resume": True,
            "started_at": first.stat().st_mtime if rank else time.time(),
            **environment.description(),
            "command": [],
        }


def _directory(path: Path, paths: list[Path]) -> Path:
    """Return the directory whose run a file belongs to: hyperparameters lie in a directory below that of their run."""
    own, above = path.parent, path.parent.parent
    if any(each.parent == above for each in paths) and _has_hyperparameters(path):
        return above
    return own


def _has_hyperparameters(path: Path) -> bool:
    try:
        return any(event_of(record).has_hyperparameters for record, _ in records(path, 0, 1 << 16))
    except (Damaged, OSError):
        return False


def _lines(at: float, step: int, scalars: Mapping[str, float]) -> list[bytes]:
    """Write scalars as the event lines of rank 0, at the time that the file states."""
    named = {name[: lines.NAME_LENGTH]: value for name, value in scalars.items() if name and name.isprintable()}
    if not named or abs(step) > lines.MAX_STEP:
        return []
    known_at = at if math.isfinite(at) and 0 <= at < 1e11 else time.time()
    return list(lines.event_lines(0, step, named, at=known_at))


def _flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as texts; a text that is a JSON object, such as the arguments of a trainer, has many."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        data = None
        if isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                data = json.loads(value)
            except (ValueError, RecursionError):
                data = None
        flat.update(data if isinstance(data, dict) else {name: value})
    return environment.flat(flat)


def check(path: Path) -> None:
    """Raise ValueError for what can be followed neither as lines of text nor as event files."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(
            f"{path} is a pipe or a device; follow a file, or run the command with `parlab run -- COMMAND`"
        )
    if not path.is_file() or is_event_file(path):
        return
    with path.open("rb") as file:
        start = file.read(1 << 16)
    control = sum(byte < 8 or 13 < byte < 27 for byte in start)
    if b"\0" in start or control > len(start) // 20:
        remedy = "follow a log in UTF-8, an event file or a directory of them"
        raise ValueError(f"{path} has {control} control characters in its first {len(start)} bytes: no text; {remedy}")
