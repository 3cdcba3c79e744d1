from datetime import UTC, datetime

import pytest

from parlab.watch.cron import next_time, preview

MONDAY = datetime(2026, 11, 23, 10, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30 2 * * 1-5", datetime(2026, 11, 24, 2, 30, tzinfo=UTC)),
        ("*/20 * * * *", datetime(2026, 11, 23, 10, 40, tzinfo=UTC)),
        ("30 10 * * *", datetime(2026, 11, 24, 10, 30, tzinfo=UTC)),
        ("0 0 1 jan *", datetime(2027, 1, 1, tzinfo=UTC)),
        ("0 0 29 2 *", datetime(2028, 2, 29, tzinfo=UTC)),
        ("0 0 13 * fri", datetime(2026, 11, 27, tzinfo=UTC)),
        ("0 12 * * 7", datetime(2026, 11, 29, 12, tzinfo=UTC)),
        ("0 22-2 * * *", datetime(2026, 11, 23, 22, tzinfo=UTC)),
        ("@daily", datetime(2026, 11, 24, tzinfo=UTC)),
    ],
)
def test_the_next_time_of_a_schedule(text: str, expected: datetime) -> None:
    assert next_time(text, MONDAY) == expected


def test_a_preview_lists_several_times() -> None:
    assert [moment.day for moment in preview("0 3 * * *", MONDAY, 3)] == [24, 25, 26]


@pytest.mark.parametrize("text", ["", "* * * *", "60 * * * *", "5- * * * *", "a * * * *", "*/0 * * * *", "0 0 31 2 *"])
def test_an_impossible_schedule_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match=r"use |choose "):
        next_time(text, MONDAY)
