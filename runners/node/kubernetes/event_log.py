"""Events of the objects of a run as lines of its log: the controller writes them down, the supervisor inserts them.

RUN_DIR/events.log   what happened to the pod and its job, one line each
RUN_DIR/events.read  how much of it the supervisor has inserted
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

from parlab.client.journal import NODE
from runners.node.rundir import RunDir, write_atomically
from runners.supervisor.spool import SpoolWriter

PREFIX = "kubernetes: "


class EventLog:
    """The events of one member of a run."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._path = run.path / "events.log"
        self._read = run.path / "events.read"

    def add(self, texts: Iterable[str]) -> None:
        """Write down what is not there yet: an event that goes on is one line."""
        there = set(_text(self._path).splitlines())
        lines = [line for line in dict.fromkeys(PREFIX + text for text in texts) if line not in there]
        if lines:
            with self._path.open("a") as file:
                file.write("".join(f"{line}\n" for line in lines))

    def text(self) -> str:
        return _text(self._path)

    def pass_on(self) -> None:
        """Note that all lines are taken: the pod gets them."""
        if self._path.exists():
            write_atomically(self._read, str(self._path.stat().st_size))

    def take(self) -> bytes:
        """Return the lines that were not taken before, and note that they are."""
        begin = self._taken()
        try:
            with self._path.open("rb") as file:
                file.seek(begin)
                data = file.read()
        except FileNotFoundError:
            return b""
        data = data[: data.rfind(b"\n") + 1]
        if data:
            write_atomically(self._read, str(begin + len(data)))
        return data

    def close(self) -> None:
        """Append what was not taken to the spool of a run without a supervisor, before its final report."""
        if data := self.take():
            with SpoolWriter(self._run.spool, at_least=self._run.acknowledged()) as writer:
                writer.append_output(data, time.time(), rank=NODE if self._run.started_at() else None)

    def _taken(self) -> int:
        with contextlib.suppress(ValueError):
            return int(_text(self._read) or 0)
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
