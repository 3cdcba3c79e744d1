"""The interval of a change of medians: wide for few and noisy steps, narrow for many calm ones."""

from __future__ import annotations

import numpy as np
import pytest

from parlab.findings.medians import median_change


def noisy(middle: float, deviation: float, count: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return middle + deviation * np.random.default_rng(seed).standard_normal(count)


def test_a_clear_change_is_proven_and_a_change_within_noise_is_not() -> None:
    clear = median_change(noisy(1.0, 0.02, 100), noisy(0.8, 0.02, 100, 1))
    assert clear is not None
    assert clear.share == pytest.approx(-0.2, abs=0.01)
    assert clear.low < clear.share < clear.high < 0
    assert clear.is_proven
    unsure = median_change(noisy(1.0, 0.4, 20), noisy(0.95, 0.4, 20, 1))
    assert unsure is not None
    assert unsure.low < 0 < unsure.high
    assert not unsure.is_proven


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(40):
        change = median_change(noisy(1.0, 0.1, 60, 2 * seed), noisy(0.9, 0.1, 60, 2 * seed + 1))
        assert change is not None
        held += change.low <= -0.1 <= change.high
    assert held >= 34


def test_steps_that_depend_on_each_other_widen_the_interval() -> None:
    calm = noisy(1.0, 0.1, 200)
    drifting = 1.0 + 0.1 * np.repeat(np.random.default_rng(2).standard_normal(50), 4)
    widths = []
    for series in (calm, drifting):
        change = median_change(series, noisy(1.0, 0.01, 200, 3))
        assert change is not None
        widths.append(change.high - change.low)
    assert widths[1] > 1.3 * widths[0]


def test_too_few_steps_and_values_that_are_none_say_nothing() -> None:
    assert median_change(noisy(1.0, 0.1, 7), noisy(1.0, 0.1, 50)) is None
    assert median_change(np.full(20, np.nan), noisy(1.0, 0.1, 50)) is None
    assert median_change(np.zeros(20), noisy(1.0, 0.1, 50)) is None
