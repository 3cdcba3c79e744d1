"""Times of a cron text: minute, hour, day of the month, month, day of the week, in UTC; pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_NAMES = {
    "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "weekday": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}
_SHORT = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *",
}  # fmt: skip
_ITEM = re.compile(r"(\*|\w{1,9})(?:-(\w{1,9}))?(?:/(\d{1,3}))?")
_SEARCH_DAYS = 366 * 9
"""29 February comes after at most eight years."""


def parse(text: str) -> list[set[int]]:
    """Return the allowed values of the five fields; raise ValueError with field, value and remedy."""
    text = _SHORT.get(text.strip().lower(), text)
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise ValueError(
            f"schedule {text[:60]!r} has {len(parts)} fields; use minute, hour, day, month and weekday:"
            " 30 2 * * 1-5 is half past two on working days"
        )
    values = [_values(part, *field) for part, field in zip(parts, _FIELDS, strict=True)]
    if 7 in values[4]:
        values[4] = (values[4] - {7}) | {0}
    return values


def _values(part: str, name: str, low: int, high: int) -> set[int]:
    allowed: set[int] = set()
    for item in part.split(","):
        match = _ITEM.fullmatch(item.lower())
        if match is None:
            raise _invalid(item, name, low, high)
        begin, end, step = match.groups()
        first = low if begin == "*" else _number(begin, name, low, high)
        last = high if begin == "*" or (step and not end) else first
        last = _number(end, name, low, high) if end else last
        if (begin == "*" and end) or last < first or step == "0":
            raise _invalid(item, name, low, high)
        allowed |= set(range(first, last + 1, int(step or 1)))
    return allowed


def _number(text: str, name: str, low: int, high: int) -> int:
    names = _NAMES.get(name, [])
    if text in names:
        return names.index(text) + (1 if name == "month" else 0)
    if not (text.isascii() and text.isdecimal()) or not low <= int(text) <= high:
        raise _invalid(text, name, low, high)
    return int(text)


def _invalid(text: str, name: str, low: int, high: int) -> ValueError:
    return ValueError(
        f"{name} {text[:40]!r} of the schedule is invalid; use {low} to {high}, *, a list 1,2, a range 1-5 or */2"
    )


def next_time(text: str, after: datetime) -> datetime:
    """Return the first time of a schedule after a moment; raise ValueError if there is none."""
    minutes, hours, days, months, weekdays = parse(text)
    parts = _SHORT.get(text.strip().lower(), text).split()
    # As in cron: if both days are restricted, either of them is enough.
    either = not parts[2].startswith("*") and not parts[4].startswith("*")
    moment = after.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    for _ in range(_SEARCH_DAYS):
        by_month, by_week = moment.day in days, moment.isoweekday() % 7 in weekdays
        is_day = (by_month or by_week) if either else (by_month and by_week)
        if moment.month in months and is_day:
            for hour in sorted(hour for hour in hours if hour >= moment.hour):
                first = moment.minute if hour == moment.hour else 0
                minute = next((minute for minute in sorted(minutes) if minute >= first), None)
                if minute is not None:
                    return moment.replace(hour=hour, minute=minute)
        moment = (moment + timedelta(days=1)).replace(hour=0, minute=0)
    raise ValueError(f"schedule {text[:60]!r} never comes, such as 31 February; choose another day")


def preview(text: str, after: datetime, count: int = 5) -> list[datetime]:
    """Return the next times of a schedule."""
    times: list[datetime] = []
    for _ in range(count):
        times.append(next_time(text, times[-1] if times else after))
    return times
