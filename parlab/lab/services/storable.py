"""Clean values from nodes and users so that every supported database can store them."""

import math
from collections.abc import Mapping
from typing import Any


def text(value: str) -> str:
    """Replace characters that PostgreSQL or UTF-8 cannot store: NUL and lone surrogates."""
    return value.encode("utf-8", "replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")


def json(value: Any) -> Any:
    """Copy JSON-like data with clean strings, and null in place of NaN and infinities."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {text(str(key)): json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json(item) for item in value]
    return value
