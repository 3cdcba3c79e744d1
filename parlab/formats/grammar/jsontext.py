"""JSON from any source -> data that can be serialised and stored."""

from __future__ import annotations

import json
import math
from typing import Any


def loads(text: str) -> Any:
    """Parse JSON; values that JSON or a database cannot store (NaN, 1e400, very long integers) stay text.

    Raises ValueError for text that is no JSON or is nested too deeply.
    """
    try:
        data = json.loads(text, parse_constant=str, parse_float=_float, parse_int=_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _clean(data) if "\\ud" in text.lower() else data


def _float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text[:100]


def _int(text: str) -> int | str:
    return int(text) if len(text) <= 18 else text[:100]


def _clean(data: Any) -> Any:
    """Replace unpaired surrogates, which cannot be encoded."""
    if isinstance(data, str):
        return data.encode("utf-8", "replace").decode()
    if isinstance(data, list):
        return [_clean(part) for part in data]
    if isinstance(data, dict):
        return {_clean(name): _clean(value) for name, value in data.items()}
    return data
