"""What a controller tells a pod that shares no volume with it: an annotation, which the pod reads as a file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runners.node.jobs.state import JobDir
from runners.node.kubernetes.event_log import PREFIX, EventLog
from runners.wire.protocol import Go

MAX_EVENTS_CHARS = 8_000
"""Of the lines of events; those that came before have reached the pod already."""
LOOK_S = 0.1
"""Seconds between two looks."""


def word_of(run: JobDir) -> str:
    """Return what the pod of a run must know now; empty if there is nothing."""
    events = EventLog(run).text()
    if len(events) > MAX_EVENTS_CHARS:
        events = events[-MAX_EVENTS_CHARS:].partition("\n")[2]
    word: dict[str, Any] = {"go": run.read_go(), "cancel": run.cancel_reason(), "events": events}
    if not any(word.values()):
        return ""
    return json.dumps(word | {"is_consequence": run.is_cancel_consequence})


class Listener:
    """Follows the word of the controller in the pod, and does in the directory of the run what a daemon would do."""

    def __init__(self, run: JobDir, path: Path, go: Callable[[Go], None]) -> None:
        self._run, self._path, self._go = run, path, go
        self._text = ""
        self._looked_at = float("-inf")

    def look(self) -> None:
        """Take what is new."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        try:
            text = self._path.read_text()
        except OSError:
            return
        if text and text != self._text:
            self._text = text
            self._take(json.loads(text))

    def _take(self, word: dict[str, Any]) -> None:
        if word["go"] is not None and not self._run.has_go:
            self._go(Go.model_validate(word["go"]))
        if word["cancel"] is not None:
            self._run.cancel(word["cancel"], is_consequence=word["is_consequence"])
        EventLog(self._run).add(line.removeprefix(PREFIX) for line in word["events"].splitlines())
