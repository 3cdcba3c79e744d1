"""What errors say about memory: PyTorch's allocators, and parlab's engines."""

from __future__ import annotations

import re

MAX_TEXT = 4_000
_SIZE = r"(\d[\d,]{0,20}(?:\.\d{1,6})?) ?([KMGT]i?B|bytes)"
_PATTERNS = {
    "asked": re.compile(rf"(?i)(?:tr(?:ied|ying) to allocate|requested) {_SIZE}"),
    "free": re.compile(rf"(?i)free {_SIZE}|{_SIZE} (?:is |are )?free\b"),
    "capacity": re.compile(rf"(?i)(?:total capacity of|, of) {_SIZE}"),
}
_BYTES = {"b": 1.0, "k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}


def memory_in(text: str) -> dict[str, float]:
    """Return what an error states in bytes: memory asked for, free memory, capacity of the device."""
    matches = {name: pattern.search(text[:MAX_TEXT]) for name, pattern in _PATTERNS.items()}
    return {name: _bytes(match) for name, match in matches.items() if match}


def _bytes(match: re.Match[str]) -> float:
    number, unit = (group for group in match.groups() if group is not None)
    return float(number.replace(",", "")) * _BYTES[unit[0].lower()]
