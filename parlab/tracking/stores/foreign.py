"""What every reader of a store returns."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from parlab.tracking.point import Point

STATUSES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
"""Those of TrackedRun; a reader runs without Django."""
MAX_STEP = 2**31 - 1
MAX_TIME_MS = 10**14
MAX_TEXT = 6_000
MAX_KEY = 250
MAX_PARAMETERS = 10_000
MAX_DEPTH = 10
_NAMESPACE = uuid.UUID("7b0c1f0e-5a5b-5d0e-9a53-4d6d0a3c9b11")


class ForeignRun(NamedTuple):
    """A run as another tracker has stored it."""

    identity: str
    """The run ID: MLflow's own, otherwise derived from tracker, project and run ID."""
    experiment: str
    name: str
    user_name: str
    status: str
    """One of STATUSES."""
    start_ms: int | None
    end_ms: int | None
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    points: Callable[[], Iterator[Point]]
    """Reads the points; those of one metric in the order in which they were logged."""
    artifacts: Mapping[str, Path]


class Store(NamedTuple):
    """A store and the files that belong to it."""

    name: str
    tracker: str
    runs: Sequence[ForeignRun]
    files: frozenset[str]
    notes: Sequence[str] = ()
    """What could not be read, one sentence each."""


def identity_of(*parts: str) -> str:
    """Return the run ID of a run whose tracker has no IDs that are unique everywhere."""
    return uuid.uuid5(_NAMESPACE, "\x1f".join(parts)).hex


def text_of(value: Any) -> str:
    """Write a value as a parameter: texts as they are, everything else as JSON."""
    if isinstance(value, str):
        return value[:MAX_TEXT]
    try:
        return orjson.dumps(value).decode()[:MAX_TEXT]
    except TypeError:
        return "nested too deeply"


def flattened(settings: Mapping[str, Any]) -> dict[str, str]:
    """Write nested settings as parameters: {"optimizer": {"lr": 0.1}} -> {"optimizer.lr": "0.1"}."""
    parameters: dict[str, str] = {}
    stack: list[tuple[str, Any]] = [(str(key), value) for key, value in reversed(list(settings.items()))]
    while stack and len(parameters) < MAX_PARAMETERS:
        key, value = stack.pop()
        if isinstance(value, Mapping) and value and key.count(".") < MAX_DEPTH:
            stack += [(f"{key}.{inner}", item) for inner, item in reversed(list(value.items()))]
        elif 0 < len(key) <= MAX_KEY:
            parameters[key] = text_of(value)
    return parameters


def point(key: str, value: Any, time_ms: float, step: Any) -> Point | None:
    """Return a point; None for what is not a number, or has a name, time or step beyond the limits."""
    number = number_of(value)
    if number is None or not 0 < len(key) <= MAX_KEY or isinstance(step, bool) or not isinstance(step, int):
        return None
    if not 0 <= time_ms < MAX_TIME_MS or abs(step) > MAX_STEP:
        return None
    return Point(key, number, int(time_ms), step)


def row_points(values: Mapping[str, Any], time_ms: float, step: Any, prefix: str = "") -> Iterator[Point]:
    """Return the numbers of a row of W&B's history, those of nested objects under names with dots."""
    for key, value in values.items():
        if not prefix and key.startswith("_"):
            continue
        if isinstance(value, Mapping) and "_type" not in value and prefix.count(".") < MAX_DEPTH:
            yield from row_points(value, time_ms, step, f"{prefix}{key}.")
        elif (logged := point(f"{prefix}{key}", value, time_ms, step)) is not None:
            yield logged


def number_of(value: Any) -> float | None:
    """Read a number, also NaN and infinity as JSON writers spell them."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str):
        return {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}.get(value)
    return None


def milliseconds(value: Any) -> int | None:
    """Read Unix milliseconds; None for anything that is not a time."""
    number = number_of(value)
    return int(number) if number is not None and math.isfinite(number) and 0 < number < MAX_TIME_MS else None
