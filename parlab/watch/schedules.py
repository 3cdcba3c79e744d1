"""Times at which watches run again by themselves, in UTC; pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_DAY = timedelta(days=1)
WEEKDAYS = "weekdays"
PERIODS = {
    "hourly": timedelta(hours=1), "daily": _DAY, WEEKDAYS: _DAY, "weekly": 7 * _DAY, "4-weekly": 28 * _DAY,
}  # fmt: skip
"""Schedule -> the time between two runs; `weekdays` is daily without Saturday and Sunday."""
FIRST_HOUR = 2
"""Hour at which a watch runs if nobody chose a time: most machines are idle then."""


def first_time(schedule: str, chosen: datetime | None, now: datetime) -> datetime:
    """Return the first time of a schedule; raise ValueError for an unknown one.

    Without a chosen time it is the next 2:00; a chosen time that has passed counts from there in whole periods.
    """
    if schedule not in PERIODS:
        raise ValueError(f"schedule {schedule[:60]!r} is unknown; use {', '.join(PERIODS)}, or leave it empty")
    first = time_of_day(FIRST_HOUR, 0, now) if chosen is None else chosen.astimezone(UTC)
    return _working(schedule, first) if first > now else next_time(schedule, first, now)


def next_time(schedule: str, last: datetime, now: datetime) -> datetime:
    """Return the first time after now; times that were missed are left out."""
    period = PERIODS[schedule]
    return _working(schedule, last + period * max(1, (now - last) // period + 1))


def time_of_day(hour: int, minute: int, now: datetime) -> datetime:
    """Return the next moment with a time of the day."""
    moment = now.astimezone(UTC).replace(hour=hour, minute=minute, second=0, microsecond=0)
    return moment if moment > now else moment + _DAY


def _working(schedule: str, moment: datetime) -> datetime:
    saturday = 5
    days = max(0, 7 - moment.weekday()) if schedule == WEEKDAYS and moment.weekday() >= saturday else 0
    return moment + days * _DAY
