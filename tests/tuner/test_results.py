"""What a result counts, over trials that are not stored."""

from __future__ import annotations

from datetime import timedelta

from parlab.lab.models import Run
from parlab.tuner.models import Study, Trial
from parlab.tuner.results import Result, Tried


def test_launches_count_up_to_the_first_that_reaches_a_value_and_failed_ones_count_too() -> None:
    search = [Tried(Trial(role=Trial.Role.SEARCH), Run(), value, "throughput") for value in (None, 8.0, 10.0, 12.0)]
    baseline = Tried(Trial(role=Trial.Role.BASELINE), Run(), 20.0, "throughput")
    result = Result(Study(), [baseline, *search], [], [], timedelta())
    assert [result.launches_until(value) for value in (8.0, 10.0, 10.1, 12.0, 12.1)] == [2, 3, 4, 4, None]
    assert result.best_so_far == [None, 8.0, 10.0, 12.0]
