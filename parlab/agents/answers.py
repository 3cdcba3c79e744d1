"""Answers of a bounded size: an agent reads every byte."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

MAX_BYTES = 20_000
_LONGEST_TEXT = 2_000


def written(value: Any) -> str:
    """Return a value as JSON of at most MAX_BYTES; long lists lose their ends, and say so."""
    value = _shortened(value)
    for longest in (10_000, 1_000, 300, 100, 50, 25, 12, 6, 3, 1):
        text = json.dumps(_cut(value, longest), separators=(",", ":"), default=str, ensure_ascii=False)
        if len(text.encode()) <= MAX_BYTES:
            return text
    return json.dumps({"too_large": "ask for fewer runs, columns or points"})


def _cut(value: Any, longest: int) -> Any:
    """Return a value whose lists and mappings have at most so many members, with the number of the others."""
    if isinstance(value, Mapping):
        items = list(value.items())
        kept = {key: _cut(each, longest) for key, each in items[:longest]}
        return kept if len(items) <= longest else {**kept, "left_out": len(items) - longest}
    if isinstance(value, list):
        kept_items = [_cut(each, longest) for each in value[:longest]]
        return kept_items if len(value) <= longest else [*kept_items, {"left_out": len(value) - longest}]
    return value


def _shortened(value: Any) -> Any:
    """Return a value without empty fields, with numbers of six digits and texts of a bounded length."""
    if isinstance(value, Mapping):
        return {str(key): _shortened(each) for key, each in value.items() if each not in (None, "", [], {})}
    if isinstance(value, (list, tuple)):
        return [_shortened(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_TEXT]}…"
    return value


def thinned(values: Sequence[Any], count: int) -> list[Any]:
    """Return evenly spaced members, with the first and the last."""
    if len(values) <= count or count < 2:
        return list(values)
    return [values[round(at * (len(values) - 1) / (count - 1))] for at in range(count)]
