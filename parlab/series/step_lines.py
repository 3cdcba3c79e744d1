"""The lines of a log that one step printed: reports of engines as text, and lines that name the step."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from parlab.series.log import log_pieces, node_ranks
from parlab.series.log_lines import line_for_page
from parlab.series.streams import NODE
from runners.wire.protocol import EVENT_PREFIX

SCAN_BYTES = 16 << 20
"""Bytes from the beginning of a log that are searched, so that a page stays fast."""
MAX_LINES = 200
_NAMED = re.compile(rb"\b(?:iteration|iter|step)[ =:/#]*0*(\d{1,9})\b(?![.,]\d)", re.IGNORECASE)


class StepLine(NamedTuple):
    """A line with its number, from 1, and the rank that printed it; None: unknown."""

    number: int
    rank: int | None
    text: str


def step_lines(attempt_id: int, step: int) -> list[StepLine]:
    """Return the lines of a step in the order of the log."""
    named = re.compile(rb"\b(?:iteration|iter|step)[ =:/#]*0*%d\b(?![.,]\d)" % step, re.IGNORECASE)
    found: list[StepLine] = []
    for number, rank, line in _lines(attempt_id):
        reported = _event(line, step) if line.startswith(EVENT_PREFIX) else None
        if reported is not None:
            found.append(StepLine(number, reported.get("rank", rank), event_text(reported)))
        elif not line.startswith(EVENT_PREFIX) and named.search(line):
            found.append(StepLine(number, None if rank == NODE else rank, line_for_page(line)))
        if len(found) == MAX_LINES:
            break
    return found


def stated_step(line: bytes) -> int | None:
    """Return the step that a report of an engine, or a line that names one, states."""
    if line.startswith(EVENT_PREFIX):
        event = _step_event(line)
        return event["step"] if event is not None and isinstance(event.get("step"), int) else None
    match = _NAMED.search(line)
    return int(match[1]) if match else None


def _lines(attempt_id: int) -> Iterator[tuple[int, int, bytes]]:
    number, scanned = 0, 0
    for piece in log_pieces(attempt_id, node_ranks(attempt_id)):
        for line in piece.text.removesuffix(b"\n").split(b"\n"):
            number += 1
            yield number, piece.rank, line
        scanned += len(piece.text)
        if scanned > SCAN_BYTES:
            return


def _event(line: bytes, step: int) -> dict[str, Any] | None:
    event = _step_event(line)
    return event if event is not None and event.get("step") == step else None


def _step_event(line: bytes) -> dict[str, Any] | None:
    if b'"event":"step"' not in line.replace(b": ", b":")[:120]:
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def event_text(event: Mapping[str, Any]) -> str:
    """Write the report of a step: `step 7 step_time 471 ms forward-compute 17.0 optimizer 0.7`."""
    parts = [f"step {event['step']}"]
    if isinstance(event.get("step_time_s"), int | float):
        parts.append(f"step_time {1e3 * event['step_time_s']:.0f} ms")
    timers = event.get("timers_s")
    for name, seconds in (timers if isinstance(timers, Mapping) else {}).items():
        if isinstance(seconds, int | float):
            parts.append(f"{name} {1e3 * seconds:.1f}")
    if isinstance(event.get("loss"), int | float):
        parts.append(f"loss {event['loss']:.4f}")
    return " ".join(parts)
