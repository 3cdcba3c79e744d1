"""When an event is sent: at once, after quiet hours, or with the mail of the day. Pure; hours are those of `now`."""

from __future__ import annotations

from datetime import datetime, timedelta

HOURS = range(24)


def first_time(
    now: datetime, *, quiet_from: int | None = None, quiet_until: int | None = None, digest_at: int | None = None
) -> datetime:
    """Return when an event of `now` may be sent first."""
    at = next_hour(now, digest_at) if digest_at is not None else now
    if quiet_from is None or quiet_until is None or not is_quiet(at.hour, quiet_from, quiet_until):
        return at
    return next_hour(at, quiet_until)


def is_quiet(hour: int, quiet_from: int, quiet_until: int) -> bool:
    """Return whether an hour lies in the quiet ones, which may span midnight: 22 to 7."""
    if quiet_from <= quiet_until:
        return quiet_from <= hour < quiet_until
    return hour >= quiet_from or hour < quiet_until


def next_hour(now: datetime, hour: int) -> datetime:
    """Return the next time at which a full hour begins, after `now`."""
    at = now.replace(hour=hour, minute=0, second=0, microsecond=0)
    return at if at > now else at + timedelta(days=1)


def checked_hour(text: str, field: str) -> int | None:
    """Read an hour of a form; empty is none. Raises ValueError."""
    if not text.strip():
        return None
    if not text.strip().isdecimal() or int(text[:4]) not in HOURS:
        raise ValueError(f"{field} {text[:20]!r} is no hour; use 0 to 23, or leave it empty")
    return int(text)
