"""Advice for engines without steps: messages, trials of a capacity search, experiments of an autotuner."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parlab.advice.units import (
    Experiment,
    Message,
    Trial,
    bytes_text,
    message_advice,
    trial_advice,
    tuning_advice,
)

KIB = 1024


def messages(sizes: Sequence[int], latency_s: float = 1e-4, bytes_s: float = 1e9) -> list[Message]:
    return [Message(size, latency_s + size / bytes_s) for size in sizes]


def test_messages_that_latency_bounds_should_be_larger() -> None:
    small = messages([KIB, 4 * KIB, 16 * KIB])
    (advice,) = message_advice({"all-reduce": small}, 4)
    # Latency takes 100 us; at 1 GB/s it is a tenth from 1 MB on, and 1 MiB is the next size of the series.
    assert advice.settings == {"collectives.max_bytes": 1024 * KIB}
    before_s, after_s = (messages([size])[0].seconds / size for size in (16 * KIB, 1024 * KIB))
    assert advice.gain == pytest.approx(1 - after_s / before_s)
    assert advice.low < advice.gain <= advice.high
    assert "latency (0.1 ms) takes 85.9 %" in advice.evidence
    assert advice.part_title == "Latency of messages"


def test_messages_at_the_rate_of_the_link_need_no_advice() -> None:
    assert message_advice({"all-reduce": messages([KIB, 4 * KIB * KIB])}, 4) == []
    assert message_advice({"all-reduce": messages([KIB])}, 4) == []  # one size: latency and rate cannot be told apart
    assert message_advice({}, 4) == []


def test_a_message_never_grows_beyond_what_the_engine_measures() -> None:
    slow = messages([1 << 28, 1 << 29], latency_s=100.0)
    (advice,) = message_advice({"all-gather": slow}, 2)
    assert advice.settings == {"collectives.max_bytes": 1 << 30}


def test_trials_of_a_capacity_search_need_two_steps() -> None:
    trials = [Trial(12.0, 0.1), Trial(12.0, 0.1), Trial(4.0, None)]
    (advice,) = trial_advice(trials, 100, 5)
    assert advice.settings == {"train.iterations": 2, "train.warmup_steps": 1}
    assert advice.gain == pytest.approx((20 - 2 * 0.2) / 28)  # the start-up of the trials stays
    assert trial_advice(trials, 2, 1) == []
    assert trial_advice([Trial(10.0, 0.001)], 10, 1) == []  # the start-up takes all of the time


def test_a_search_whose_best_micro_batch_is_its_largest_should_go_on() -> None:
    experiments = [Experiment(1, size, (0.08 + 0.01 * size) / size) for size in (1, 2)]
    (advice,) = tuning_advice(experiments, 2, [1], {})
    assert advice.settings == {"autotuning.max_micro_batch_size": 8}
    assert advice.gain == pytest.approx(1 - (0.16 / 8) / (0.1 / 2))
    slower = [*experiments, Experiment(1, 4, 0.2)]
    assert tuning_advice(slower, 4, [1], {}) == []  # the best one lies inside the search
    for most in (4, 16):
        assert tuning_advice(experiments, most, [1], {}) == []  # the tuner gave up larger ones itself
    assert tuning_advice([], 2, [1], {}) == []


def test_a_search_without_the_better_zero_stage_should_include_it() -> None:
    experiments = [Experiment(3, 4, 0.1)]
    (advice,) = tuning_advice(experiments, 4, [3], {0: 0.1, 1: 0.3, 2: -0.1})
    assert advice.settings == {"autotuning.stages": [1, 3]}
    assert (advice.gain, advice.kind) == (0.3, "search")


@pytest.mark.parametrize(
    ("size", "text"), [(512, "512 B"), (64 * KIB, "64 KiB"), (3 << 20, "3 MiB"), (1 << 30, "1 GiB")]
)
def test_sizes_have_units(size: int, text: str) -> None:
    assert bytes_text(size) == text
