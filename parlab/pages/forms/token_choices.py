"""What a person chooses for a new token."""

from __future__ import annotations

from parlab.whole_numbers import whole_number

TOKEN_DAYS = (("30", "30 days"), ("90", "90 days"), ("365", "1 year"), ("", "no expiry"))


def token_days(text: str) -> int | None:
    """Return the lifetime that was chosen, None for no expiry. Raises ValueError."""
    days = whole_number(text, 5)
    if text and days is None:
        raise ValueError(f"days {text[:20]!r} is not a number; choose one from the list")
    return days
