"""Engine capacity: the search algorithm, and real runs under a real memory limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runners.config import ConfigError, RunConfig
from runners.engines.capacity import candidates, search, trial_data
from runners.node.launch.launch import command
from tests.engines.started import run_engine

pytestmark = pytest.mark.slow

# A layer has 50 million parameters, each with its gradient and Adam's two moments: 768 MiB. Python and torch need
# additional memory that differs between machines, e.g. 350 MiB; the limits below leave room for more than twice that.
LAYER_MIB = 768
MODEL = {"num_layers": 1, "hidden_size": 2048, "num_attention_heads": 2, "sequence_length": 16, "vocab_size": 64}
DATA: dict[str, Any] = {
    "model": MODEL,
    "train": {"global_batch_size": 2, "micro_batch_size": 1, "iterations": 2, "warmup_steps": 1},
    "parallel": {"engine": "capacity"},
    "capacity": {"find": "num_layers", "at_most": 400},
    "cluster": {"device": "cpu"},
    "launcher": {"kind": "plain"},
}


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64])
def test_the_search_finds_every_limit_with_few_trials(count: int) -> None:
    values = [3 * value for value in range(1, count + 1)]
    for border in range(count + 1):
        tried: list[int] = []
        assert search(values, _fits_up_to(3 * border, tried), is_rising=False) == (3 * border or None)
        assert len(tried) == len(set(tried)) <= 2 * count.bit_length() + 1
        is_within = _fits_up_to(3 * border, [])
        smallest = search(values, lambda value: not is_within(value), is_rising=True)  # noqa: B023  # called at once
        assert smallest == (3 * border + 3 if border < count else None)


def _fits_up_to(limit: int, tried: list[int]) -> Callable[[int], bool]:
    def fits(value: int) -> bool:
        tried.append(value)
        return value <= limit

    return fits


def test_trials_never_go_far_beyond_the_limit() -> None:
    tried: list[int] = []
    search(range(1, 1000), _fits_up_to(10, tried), is_rising=False)
    assert max(tried) <= 20


def test_a_trial_is_the_run_with_one_field_changed() -> None:
    capacity = {"find": "micro_batch_size", "engine": "zero"}
    config = RunConfig.model_validate(DATA | {"capacity": capacity, "launcher": {}, "parallel": {"engine": "capacity"}})
    data = trial_data(config, 8)
    assert (data["train"]["micro_batch_size"], data["train"]["global_batch_size"]) == (8, 16)
    assert data["parallel"]["engine"] == "zero"


def test_only_numbers_of_processes_that_are_valid_for_batch_and_layers_are_tried() -> None:
    few = {"find": "processes", "engine": "zero", "at_most": 8}
    config = RunConfig.model_validate(DATA | {"capacity": few, "train": {"global_batch_size": 6}, "launcher": {}})
    assert candidates(config) == [1, 2, 3, 6]
    assert config.world_size == 8
    stages = RunConfig.model_validate(
        DATA
        | {
            "capacity": {"find": "num_layers", "at_most": 1},
            "launcher": {},
            "parallel": {"engine": "capacity", "pipeline_parallel_size": 1},
        }
    )
    assert candidates(stages) == [1]


def test_a_search_is_one_process_whatever_the_layout() -> None:
    config = RunConfig.model_validate(DATA | {"capacity": {"find": "processes", "at_most": 4}, "launcher": {}})
    assert command(config, Path("config.json"))[1:3] == ["-m", "runners.engines.capacity"]


def test_the_most_layers_that_train_within_a_memory_limit_are_found_by_real_runs(tmp_path: Path) -> None:
    limit = int(2.2 * LAYER_MIB)
    limited = DATA | {"launcher": {"kind": "plain", "memory_limit_mib": limit}}
    output = run_engine(limited, tmp_path, processes=0)
    assert output.code == 0, output.text
    trials = output.events("step")
    fitting = [trial["num_layers"] for trial in trials if trial["fits"]]
    failing = [trial["num_layers"] for trial in trials if not trial["fits"]]
    (end,) = output.events("end")
    assert fitting
    assert failing
    assert end["largest_num_layers"] == max(fitting) == min(failing) - 1
    # Each parameter takes 16 bytes: the weight, its gradient and Adam's two moments.
    assert 16 * end["model_parameters"] < limit * 2**20
    assert "does not fit: out of memory" in output.text
    assert not output.events("oom")


def test_the_largest_micro_batch_within_a_memory_limit_is_found_by_real_runs(tmp_path: Path) -> None:
    # The logits of one sequence are 256 MiB, and the loss keeps several of their size.
    model = {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "sequence_length": 1024, "vocab_size": 65536}
    train = {"global_batch_size": 2, "micro_batch_size": 1, "iterations": 2, "warmup_steps": 1}
    search_for = {"find": "micro_batch_size", "at_most": 7}
    limited = {"kind": "plain", "memory_limit_mib": 2400}
    data = DATA | {"model": model, "train": train, "capacity": search_for, "launcher": limited}
    output = run_engine(data, tmp_path, processes=0)
    assert output.code == 0, output.text
    (end,) = output.events("end")
    trials = {trial["micro_batch_size"]: trial["fits"] for trial in output.events("step")}
    largest = end["largest_micro_batch_size"]
    assert trials[largest] is True
    assert trials[largest + 1] is False
    assert end["is_at_most"] is False


def test_the_fewest_processes_for_a_model_are_found_by_real_runs_under_a_memory_limit(tmp_path: Path) -> None:
    # One process would have four layers, each of two processes has two: one above the limit and one below it.
    model, limit = MODEL | {"num_layers": 4}, 3 * LAYER_MIB
    train = {"global_batch_size": 4, "micro_batch_size": 1, "iterations": 2, "warmup_steps": 1}
    search_for = {"find": "processes", "at_most": 4}
    data = DATA | {"model": model, "train": train, "capacity": search_for, "launcher": {"memory_limit_mib": limit}}
    output = run_engine(data, tmp_path, processes=0)
    assert output.code == 0, output.text
    (end,) = output.events("end")
    trials = {trial["processes"]: trial["fits"] for trial in output.events("step")}
    assert trials[1] is False
    assert end["fewest_processes"] == 2
    assert "processes 1 does not fit: out of memory" in output.text


def test_a_trial_that_fails_for_another_reason_ends_the_search_with_that_reason(tmp_path: Path) -> None:
    # The trial outlasts its limit on a machine of any speed.
    endless = DATA["train"] | {"iterations": 10**6}
    hasty = DATA | {"train": endless, "capacity": {"at_most": 1, "trial_timeout_s": 1}}
    output = run_engine(hasty, tmp_path, processes=0)
    assert output.code == 1
    assert "the trial of num_layers 1 took longer than capacity.trial_timeout_s 1 s; raise it" in output.text


def test_a_search_without_any_valid_value_is_refused() -> None:
    config = RunConfig.model_validate(
        DATA | {"capacity": {"find": "processes", "engine": "pipeline", "at_most": 2}, "launcher": {}}
    )
    object.__setattr__(config.train, "global_batch_size", 3)
    object.__setattr__(config.train, "micro_batch_size", 2)
    with pytest.raises(ConfigError, match="global_batch_size"):
        candidates(config)
