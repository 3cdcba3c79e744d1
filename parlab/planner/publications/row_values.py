"""Read values of rows: sections, numbers and sizes, with errors that name field, value and remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def section(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a row; empty if it is missing."""
    data = row.get(name) or {}
    if not isinstance(data, Mapping):
        raise ValueError(f"{name} {str(data)[:40]!r} is not an object; use a JSON object")
    return data


def whole(data: Mapping[str, Any], name: str, default: int) -> int:
    """Return a positive integer; the default if it is missing, null or 0."""
    value = data.get(name)
    size = number(name, value or default)
    if size != int(size) or size < 1:
        raise ValueError(f"{name} {value!r} is not a positive integer; use 1 or more")
    return int(size)


def number(name: str, value: object) -> float:
    """Return a finite number. Raises ValueError for anything else."""
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} {str(value)[:40]!r} is not a number; use a number") from error
    if not math.isfinite(result):
        raise ValueError(f"{name} {result} is not finite; use a finite number")
    return result


def maybe(data: Mapping[str, Any], name: str) -> int | None:
    """Return a positive integer; None if it is missing, null or 0."""
    return whole(data, name, 1) if data.get(name) else None
