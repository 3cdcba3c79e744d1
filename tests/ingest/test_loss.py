"""Rules for the loss: what they find, and above all what they leave alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from parlab.ingest.summaries.loss import loss_of


def judged(values: Any) -> dict[str, Any]:
    losses = np.asarray(values, np.float64)
    return loss_of(np.arange(1, len(losses) + 1), losses)


def healthy(count: int = 400, noise: float = 0.1, seed: int = 0) -> NDArray[np.float64]:
    """A loss that falls from 10 towards 2, with noise of the size of its batches."""
    steps, generator = np.arange(count), np.random.default_rng(seed)
    return 2 + 8 * np.exp(-steps / (count / 8)) + noise * generator.normal(size=count)


def test_a_nan_is_found_with_its_step_and_the_values_before_it() -> None:
    assert judged([5.0, 4.0, math.nan, math.inf]) == {
        "first": 5.0, "not_finite": 2, "first_not_finite": 3, "before": [5.0, 4.0],
    }  # fmt: skip


def test_a_loss_that_was_nan_once_has_a_last_value() -> None:
    assert judged([5.0, math.nan, 4.0])["last"] == 4.0


def test_a_loss_that_returns_to_where_it_began_has_diverged() -> None:
    losses = healthy()
    losses[300:] = 7 + np.random.default_rng(1).normal(size=100)
    rise = judged(losses)["diverged"]
    assert 290 <= rise["step"] <= 312
    assert rise["level"] == pytest.approx(2, abs=0.2)
    assert rise["reached"] == pytest.approx(7, abs=1)


def test_a_wild_end_hides_no_divergence() -> None:
    losses = healthy()
    losses[100:] = np.abs(np.random.default_rng(1).normal(size=300)) * 1e5
    assert "diverged" in judged(losses)


def test_a_rise_that_ends_is_no_divergence() -> None:
    losses = healthy()
    losses[200:260] = 7
    assert "diverged" not in judged(losses)


def test_a_spike_that_recovers_is_found_at_its_top() -> None:
    losses = healthy()
    losses[300:303] = [5.0, 8.0, 4.0]
    spike = judged(losses)["spikes"]
    assert (spike["count"], spike["step"], spike["value"]) == (1, 302, 8.0)
    assert spike["level"] == pytest.approx(2, abs=0.3)


def test_two_spikes_are_one_line_with_their_number() -> None:
    losses = healthy()
    losses[[200, 350]] = 9.0
    assert judged(losses)["spikes"]["count"] == 2


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("count", [10, 60, 400, 5_000])
def test_healthy_losses_raise_no_alarm(noise: float, count: int) -> None:
    for seed in range(5):
        found = judged(healthy(count, noise, seed))
        assert not found.keys() & {"diverged", "spikes", "not_finite"}


def test_losses_of_single_samples_raise_no_alarm() -> None:
    """A batch of one has a loss with a heavy tail: log-normal with a factor of two."""
    for seed in range(20):
        losses = np.exp(0.7 * np.random.default_rng(seed).normal(size=2_000))
        assert not judged(losses).keys() & {"diverged", "spikes"}


def test_a_warm_up_that_first_rises_raises_no_alarm() -> None:
    losses = np.concatenate([np.linspace(10, 11, 20), healthy(300)])
    assert not judged(losses).keys() & {"diverged", "spikes"}


def test_a_loss_that_grows_from_zero_raises_no_alarm() -> None:
    """The loss of GRPO is the divergence of the policy from the first one, which grows."""
    for seed in range(10):
        noise = np.exp(0.3 * np.random.default_rng(seed).normal(size=400))
        assert not judged(5e-4 * np.arange(400) ** 0.7 * noise).keys() & {"diverged", "spikes"}


def test_a_loss_that_rises_from_the_first_step_has_diverged() -> None:
    generator = np.random.default_rng(0)
    assert "diverged" in judged(10.8 + np.linspace(0, 20, 200) + 0.1 * generator.normal(size=200))


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), max_size=200))
def test_any_values_give_a_summary_of_finite_numbers(values: list[float]) -> None:
    def finite(part: Any) -> bool:
        if isinstance(part, dict):
            return all(map(finite, part.values()))
        if isinstance(part, list):
            return all(map(finite, part))
        return math.isfinite(part)

    assert finite(judged(values))
