"""Engine autotuning, which runs DeepSpeed's own autotuner; the test that starts the tuner is slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runners.config import ConfigError, RunConfig, check, tuned_config
from runners.engines import autotuning

from .started import run_engine

DATA: dict[str, Any] = {
    "model": {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "sequence_length": 8, "vocab_size": 32},
    "train": {"global_batch_size": 2, "micro_batch_size": 1, "iterations": 4, "warmup_steps": 1},
    "parallel": {"engine": "autotuning", "data_parallel_size": 2},
    "autotuning": {"stages": [1, 0, 1], "max_micro_batch_size": 2},
    "cluster": {"device": "cpu"},
}


def step_line(step: int, rank: int, seconds: float, *, warmup: bool = False) -> str:
    fields = {"event": "step", "step": step, "warmup": warmup, "step_time_s": seconds, "memory_peak_bytes": 100 + rank}
    return json.dumps({"parlab": 1, "t": 1.0, "rank": rank, **fields}, separators=(",", ":"))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results directory of one experiment, as the tuner writes it."""
    directory = tmp_path / "z1_gas2_tmbspg3"
    directory.mkdir()
    settings = {
        "zero_optimization": {"stage": 1},
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 2,
        "train_batch_size": 12,
    }
    (directory / "exp.json").write_text(json.dumps({"name": directory.name, "ds_config": settings}))
    lines = [step_line(1, 0, 9.0, warmup=True)]
    lines += [step_line(step, rank, 0.1 * step + rank) for step in (2, 3, 4) for rank in (0, 1)]
    lines += ["other output", step_line(5, 0, 7.0)]  # after the timed steps the tuner profiles
    (directory / "stdout.log").write_text("\n".join(lines))
    (directory / "stderr.log").write_text("")
    return directory


def test_the_tuners_settings_have_numbers_and_no_contradicting_global_batch() -> None:
    settings = autotuning.tuner_settings(RunConfig.model_validate(DATA))
    assert "train_batch_size" not in settings
    assert settings["zero_optimization"] == {"stage": [0, 1]}
    assert settings["train_micro_batch_size_per_gpu"] == 1
    tuner = settings["autotuning"]
    assert (tuner["start_profile_step"], tuner["end_profile_step"]) == (4, 6)
    assert tuner["max_train_micro_batch_size_per_gpu"] == 2


def test_an_experiment_has_end_to_end_times_and_the_tuners_times(results: Path) -> None:
    (results / "metrics.json").write_text(json.dumps({"fwd": 1e5, "bwd": 2e5, "step": 5e4, "latency": 7e5, "rank": 0}))
    outcome = autotuning.outcome(results, RunConfig.model_validate(DATA))
    assert outcome.state == "finished"
    assert (outcome.zero_stage, outcome.micro_batch_size, outcome.accumulation) == (1, 3, 2)
    assert outcome.step_times_s == pytest.approx([1.2, 1.3, 1.4])
    assert sum(outcome.tuner_s.values()) == pytest.approx(0.7)
    assert outcome.memory_peak_bytes == {"0": 100, "1": 101}


@pytest.mark.parametrize("metrics", [None, {"latency": 0, "throughput": 0}])
def test_an_experiment_without_a_metric_has_failed_with_a_reason(
    results: Path, metrics: dict[str, float] | None
) -> None:
    if metrics is not None:
        (results / "metrics.json").write_text(json.dumps(metrics))
    event = {"parlab": 1, "t": 1.0, "rank": 0, "event": "oom", "phase": "backward", "message": "no memory"}
    with (results / "stdout.log").open("a") as file:
        file.write("\n" + json.dumps(event, separators=(",", ":")) + "\n")
    outcome = autotuning.outcome(results, RunConfig.model_validate(DATA))
    assert outcome.state == "oom"
    assert outcome.reason
    assert not outcome.tuner_s


def test_an_experiment_is_a_run_of_engine_zero() -> None:
    base = RunConfig.model_validate(DATA).resolved()
    config, problems = tuned_config(base, zero_stage=2, micro_batch_size=3, num_micro_batches=2)
    assert config is not None, problems
    assert (config.parallel.engine, config.parallel.zero_stage) == ("zero", 2)
    assert (config.train.global_batch_size, config.num_micro_batches) == (12, 2)


def test_a_node_without_the_tuner_reports_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"requires deepspeed and tabulate; pip install 'parlab\[node\]'"):
        autotuning.prepare(RunConfig.model_validate(DATA), tmp_path)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"autotuning": {"max_micro_batch_size": 1}, "train": {"micro_batch_size": 2, "global_batch_size": 4}},
            "below",
        ),
        ({"autotuning": {"stages": []}}, "stages"),
        (
            {"parallel": {"engine": "autotuning", "zero_stage": 1, "zero_offload": "optimizer"}},
            "does not support offloading",
        ),
        ({"parallel": {"engine": "autotuning", "tensor_parallel_size": 2}}, "tensor_parallel_size 2"),
    ],
)
def test_what_the_tuner_cannot_search_is_refused(sections: dict[str, Any], message: str) -> None:
    _, problems = check(DATA | sections)
    assert message in "; ".join(map(str, problems))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_deepspeeds_autotuner_searches_on_this_machine(tmp_path: Path) -> None:
    data = DATA | {"autotuning": {"stages": [0], "max_micro_batch_size": 1}}
    output = run_engine(data, tmp_path, processes=0, timeout=800)
    assert output.code == 0, output.text
    (experiment,) = output.events("experiment")
    assert experiment["name"] == "z0_gas1_tmbspg1"
    assert experiment["state"] == "finished", experiment
    assert experiment["steps"] == 3
    assert set(experiment["timers_s"]) == {"forward", "backward", "step"}
    assert output.events("end")[0]["best"] == "z0_gas1_tmbspg1"
    assert not list(tmp_path.glob("autotuning_*"))
