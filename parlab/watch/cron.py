"""Times of a cron text: minute, hour, day of the month, month, day of the week, in UTC.

Celery parses the fields and finds the next time. It combines both kinds of days by "and"; here either of them is enough
if both are restricted, as in cron.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from celery.schedules import ParseException, crontab, crontab_parser

_FIELDS = (("minute", 60, 0), ("hour", 24, 0), ("day", 31, 1), ("month", 12, 1), ("weekday", 7, 0))
_SHORT = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *",
}  # fmt: skip
_ITEM = re.compile(r"(?:\*|\w{1,9}(?:-\w{1,9})?)(?:/[1-9]\d{0,2})?")


def parse(text: str) -> list[str]:
    """Return the five fields of a cron text; raise ValueError with field, value and remedy."""
    parts = _SHORT.get(text.strip().lower(), text).lower().split()
    if len(parts) != len(_FIELDS):
        raise ValueError(
            f"schedule {text[:60]!r} has {len(parts)} fields; use minute, hour, day, month and weekday:"
            " 30 2 * * 1-5 is half past two on working days"
        )
    parts[4] = re.sub(r"\b7\b", "0", parts[4])
    for part, (name, count, least) in zip(parts, _FIELDS, strict=True):
        for item in part.split(","):
            _check(item, name, count, least)
    return parts


def _check(item: str, name: str, count: int, least: int) -> None:
    try:
        values = crontab_parser(count, least).parse(item)
    except (ParseException, ValueError, KeyError, IndexError):
        values = set()
    if not values or not _ITEM.fullmatch(item):
        raise ValueError(
            f"{name} {item[:40]!r} of the schedule is invalid; use {least} to {least + count - 1}, *, a list 1,2,"
            " a range 1-5 or */2"
        )


def next_time(text: str, after: datetime) -> datetime:
    """Return the first time of a schedule after a moment; raise ValueError if there is none."""
    minute, hour, day, month, weekday = parse(text)
    is_either = not day.startswith("*") and not weekday.startswith("*")
    days = [(day, "*"), ("*", weekday)] if is_either else [(day, weekday)]
    return min(_next(text, minute, hour, *pair, month, after.astimezone(UTC)) for pair in days)


def _next(text: str, minute: str, hour: str, day: str, weekday: str, month: str, after: datetime) -> datetime:
    try:
        times = crontab(minute, hour, weekday, day, month, nowfun=lambda: after)
        last, delta, _ = times.remaining_delta(after, tz=UTC)
        moment: datetime = last + delta
    except (RuntimeError, ValueError, OverflowError) as error:
        raise ValueError(f"schedule {text[:60]!r} never comes, such as 31 February; choose another day") from error
    return moment.astimezone(UTC)


def preview(text: str, after: datetime, count: int = 5) -> list[datetime]:
    """Return the next times of a schedule."""
    times: list[datetime] = []
    for _ in range(count):
        times.append(next_time(text, times[-1] if times else after))
    return times
