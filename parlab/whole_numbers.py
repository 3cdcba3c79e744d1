"""Whole numbers in addresses and forms: ASCII digits only, and not more than a database stores."""

from __future__ import annotations

from collections.abc import Iterable

ID_DIGITS = 18
"""Digits of the largest id: all numbers of so many digits fit in 64 bits."""


def whole_number(text: str, digits: int = ID_DIGITS) -> int | None:
    """Return a text as a whole number from 0; None for any other text, and for more digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else None


def whole_numbers(texts: Iterable[str]) -> list[int]:
    return [number for text in texts if (number := whole_number(text)) is not None]
