"""How step times change over a run."""

from __future__ import annotations

import numpy as np
import pytest

from parlab.ingest.summaries.trend import trend_of


def test_the_thirds_of_a_run_of_hours_have_their_medians() -> None:
    times = np.repeat([1.0, 2.0, 3.0], 30)
    trend = trend_of(np.arange(90) * 60, times)
    assert trend["thirds_s"] == [1.0, 2.0, 3.0]
    assert trend["hours"] == pytest.approx(np.sum(times[1:] * 60) / 3600)


def test_short_runs_have_no_trend() -> None:
    assert trend_of(np.arange(90), np.ones(90)) == {}
    assert trend_of(np.arange(30) * 1000, np.ones(30)) == {}
