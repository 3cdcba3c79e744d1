"""Times of schedules: the first one, the next one, working days, missed times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib import import_module

import pytest

from parlab.watch.models import Watch
from parlab.watch.schedules import PERIODS, first_time, next_time

FRIDAY = datetime(2026, 3, 6, 12, 30, tzinfo=UTC)
TWO = datetime(2026, 3, 6, 2, tzinfo=UTC)


def test_the_choices_are_those_that_have_a_period() -> None:
    assert set(Watch.Schedule.values) == set(PERIODS)


@pytest.mark.parametrize(
    ("schedule", "chosen", "expected"),
    [
        ("daily", None, datetime(2026, 3, 7, 2, tzinfo=UTC)),
        ("weekdays", None, datetime(2026, 3, 9, 2, tzinfo=UTC)),
        ("daily", FRIDAY + timedelta(days=9), FRIDAY + timedelta(days=9)),
        ("weekly", TWO, TWO + timedelta(days=7)),
        ("hourly", TWO, datetime(2026, 3, 6, 13, tzinfo=UTC)),
    ],
)
def test_the_first_time_is_the_chosen_one_or_two_o_clock(
    schedule: str, chosen: datetime | None, expected: datetime
) -> None:
    assert first_time(schedule, chosen, FRIDAY) == expected


@pytest.mark.parametrize(
    ("schedule", "now", "expected"),
    [
        ("hourly", TWO, TWO + timedelta(hours=1)),
        ("daily", TWO + timedelta(days=3, minutes=1), TWO + timedelta(days=4)),
        ("weekdays", TWO, TWO + timedelta(days=3)),
        ("weekdays", TWO + timedelta(days=1, hours=1), TWO + timedelta(days=3)),
        ("4-weekly", TWO, TWO + timedelta(days=28)),
    ],
)
def test_the_next_time_is_the_first_one_after_now(schedule: str, now: datetime, expected: datetime) -> None:
    assert next_time(schedule, TWO, now) == expected


def test_an_unknown_schedule_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"schedule '0 3 \* \* \*' is unknown; use hourly, daily"):
        first_time("0 3 * * *", None, FRIDAY)


MIGRATION = import_module("parlab.watch.migrations.0002_simple_schedules")


@pytest.mark.parametrize(
    ("text", "schedule", "is_same"),
    [
        ("0 3 * * *", "daily", True),
        ("@daily", "daily", True),
        ("30 2 * * 1-5", "weekdays", True),
        ("15 * * * *", "hourly", True),
        ("0 4 * * 7", "weekly", True),
        ("*/5 * * * *", "hourly", False),
        ("0 3 * * 1,4", "weekly", False),
        ("0 0 1 * *", "4-weekly", False),
        ("0 0 1,15 * 1", "weekly", False),
        ("0 */12 * * *", "daily", False),
    ],
)
def test_a_cron_text_of_an_earlier_version_becomes_the_nearest_schedule(
    text: str, schedule: str, is_same: bool
) -> None:
    assert MIGRATION.simplest(text, FRIDAY) == (schedule, is_same)
