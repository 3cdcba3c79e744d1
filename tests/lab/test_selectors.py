"""Points of runs for figures."""

from collections.abc import Callable

import pytest

from parlab.lab.models import Attempt
from parlab.lab.selectors.analysis.sweep import run_points


def test_phases_are_averaged_over_all_ranks(make_attempt: Callable[..., Attempt]) -> None:
    run = make_attempt(state="finished").run
    run.summary = {
        "timers_s": {
            "forward-compute": {"median": 0.5, "min": 0.4, "max": 0.6, "by_rank": {"0": 0.4, "1": 0.6}},
            "backward-recv": {"median": 0.6, "min": 0.6, "max": 0.6, "by_rank": {"0": 0.6}},
            "optimizer": {"median": 0.1},
        }
    }

    (point,) = run_points([run])

    means = {name: timer.median for name, timer in point.timers.items()}
    assert means == pytest.approx({"forward-compute": 0.5, "backward-recv": 0.3, "optimizer": 0.1})
    assert point.timers["backward-recv"].max == 0.6
