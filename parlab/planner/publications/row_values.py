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


def is_missing(value: object) -> bool:
    """Return whether a value is not stated: missing, null or an empty text."""
    return value is None or value == ""


def given(value: Any, usual: Any) -> Any:
    """Return a value, or `usual` if it is not stated."""
    return usual if is_missing(value) else value


def whole(data: Mapping[str, Any], name: str, default: int) -> int:
    """Return a positive integer; the default if it is not stated."""
    value = data.get(name)
    size = number(name, given(value, default))
    if size != int(size) or size < 1:
        raise ValueError(f"{name} {value!r} is not a positive integer; use 1 or more")
    return int(size)


def number(name: str, value: object) -> float:
    """Return a finite number. Raises ValueError for anything else."""
    try:
        if isinstance(value, bool):
            raise TypeError
        result = float(value)  # type: ignore[arg-type]
    except OverflowError as error:
        raise ValueError(f"{name} is more than 1e308; use a smaller number") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} {str(value)[:40]!r} is not a number; use a number") from error
    if not math.isfinite(result):
        raise ValueError(f"{name} {result} is not finite; use a finite number")
    return result


def stated(data: Mapping[str, Any], name: str) -> int | None:
    """Return a positive integer; None if it is not stated."""
    return None if is_missing(data.get(name)) else whole(data, name, 1)


def maybe(data: Mapping[str, Any], name: str) -> int | None:
    """Return a positive integer; None if it is not stated, or 0 or false: there is none."""
    value = data.get(name)
    return None if is_missing(value) or value is False or number(name, value) == 0 else whole(data, name, 1)
