"""Metrics of a step as event lines, the form in which engines print them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

LINE_LIMIT = 4_096
"""Bytes; a longer line is no event."""
MAX_STEP = 2**31 - 1
NAME_LENGTH = 250
MAX_NAMES = 100_000

_ENCODE = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode


PLAIN = frozenset({float, int})
"""Types whose repr is JSON, as long as the number is finite."""
LARGEST = 1e300


def template(rank: int, names: Iterable[str]) -> str:
    """Return the event line of accepted names as a format for time, step and the values in PLAIN."""
    pairs = ",".join(f"{_ENCODE(name)}:".replace("%", "%%") + "%r" for name in names)
    return f'{{"parlab":1,"t":%.3f,"rank":{rank},"event":"step","step":%d,"metrics":{{{pairs}}}}}\n'


def event_lines(
    rank: int,
    step: int,
    values: Mapping[str, float],
    timers: Mapping[str, float] | None = None,
    *,
    at: float | None = None,
) -> Iterator[bytes]:
    """Yield lines that together contain all values, each shorter than LINE_LIMIT, at a Unix time: now."""
    head = _head(rank, step, time.time() if at is None else at)
    for field, numbers in (("timers_s", timers or {}), ("metrics", values)):
        part: list[str] = []
        size = 0
        for name, value in numbers.items():
            item = f"{_ENCODE(name)}:{_json_number(value)}"
            if part and size + len(item) > LINE_LIMIT - 300:
                yield f'{head}"{field}":{{{",".join(part)}}}}}\n'.encode("ascii")
                part, size = [], 0
            part.append(item)
            size += len(item) + 1
        if part:
            yield f'{head}"{field}":{{{",".join(part)}}}}}\n'.encode("ascii")


def _head(rank: int, step: int, at: float) -> str:
    return f'{{"parlab":1,"t":{at:.3f},"rank":{rank},"event":"step","step":{step},'


def _json_number(value: float) -> str:
    # JSON has no infinities: they travel as texts, and null is not a number.
    return _ENCODE(value) if math.isfinite(value) else "null" if math.isnan(value) else f'"{value}"'


def number_of(value: Any) -> float | None:
    """Return a number for a value of any library (0-dimensional arrays and tensors too), else None."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (str, bytes)):
        return None
    try:
        if isinstance(value, (int, float)):
            return value if isinstance(value, float) or abs(value) < 2**63 else float(value)
        # Of a tensor that requires gradients, float() would warn.
        return float(value.item() if hasattr(value, "item") else value)
    except Exception:  # a class of the script may fail in any way
        return None
