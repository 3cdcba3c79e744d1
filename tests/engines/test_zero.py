"""ZeRO by DeepSpeed trains like one process, in every stage and for both kinds of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from runners.config import RunConfig, check
from runners.engines.training.data import make_arguments
from runners.engines.training.networks import build
from tests.engines.started import run_engine
from tests.engines.zero_ranks import train_with_zero

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
STEPS = 5
MODEL = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "sequence_length": 16, "vocab_size": 64}
BERT = {"kind": "bert", "attention_mask": "bidirectional"}
TRAIN = {"global_batch_size": 8, "micro_batch_size": 2, "learning_rate": 1e-3, "iterations": 3}


def make_data(stage: int = 0, *, model: dict[str, Any] | None = None, **parallel: Any) -> dict[str, Any]:
    layout = {"engine": "zero", "data_parallel_size": 2, "zero_stage": stage, **parallel}
    return {"model": MODEL | (model or {}), "train": TRAIN, "parallel": layout, "cluster": {"device": "cpu"}}


CASES: dict[str, dict[str, Any]] = {
    **{f"stage {stage}": make_data(stage) for stage in range(4)},
    "huggingface": make_data(2, model={"implementation": "huggingface"}),
    "bert": make_data(3, model=BERT),
    "huggingface bert": make_data(1, model=BERT | {"implementation": "huggingface"}),
    "prefix": make_data(1, model={"attention_mask": "prefix", "prefix_length": 5}),
    "offload": make_data(2, zero_offload="optimizer"),
    "offload of all": make_data(3, zero_offload="all"),
    "bf16": make_data(1) | {"train": TRAIN | {"precision": "bf16"}},
}


def losses_of_one_process(config: RunConfig) -> list[float]:
    """Train on the full batch with ordinary autograd."""
    network = build(config, CPU)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.train.learning_rate)
    losses = []
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = network(*make_arguments(config, step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[float]]]:
    configs = {name: RunConfig.model_validate(data) for name, data in CASES.items()}
    return train_with_zero(configs, STEPS, tmp_path_factory.mktemp("zero"))


@pytest.mark.parametrize("name", CASES)
def test_losses_equal_those_of_one_process(name: str, trained: dict[str, list[list[float]]]) -> None:
    config = RunConfig.model_validate(CASES[name])
    expected = losses_of_one_process(config)
    tolerance = 5e-2 if name == "bf16" else 1e-4
    for losses in trained[name]:
        assert losses == pytest.approx(expected, abs=tolerance)
    assert expected[0] - expected[-1] > 0.01


def test_eight_ranks_train_what_one_process_trains_in_every_stage(tmp_path: Path) -> None:
    train = TRAIN | {"micro_batch_size": 1}
    cases = {f"stage {stage}": make_data(stage, data_parallel_size=8) | {"train": train} for stage in range(4)}
    configs = {name: RunConfig.model_validate(data) for name, data in cases.items()}
    expected = losses_of_one_process(configs["stage 0"])
    for ranks in train_with_zero(configs, STEPS, tmp_path, world_size=8).values():
        assert ranks == [pytest.approx(expected, abs=1e-4)] * 8


def test_torchrun_trains_and_every_rank_prints_its_steps(tmp_path: Path) -> None:
    output = run_engine(make_data(3), tmp_path)
    assert output.code == 0, output.text
    for rank in (0, 1):
        steps = output.events("step", rank)
        assert [(step["step"], step["warmup"]) for step in steps] == [(1, True), (2, False), (3, False)]
        for step in steps:
            assert set(step["timers_s"]) == {"forward-compute", "backward-compute", "optimizer"}
            assert 0 < sum(step["timers_s"].values()) <= step["step_time_s"]
            assert (step["samples"], step["tokens"]) == (8, 128)
    assert [event["engine"] for event in output.events("start")] == ["zero", "zero"]
    assert len(output.events("end")) == 2


def test_one_process_trains_alone_without_a_launcher(tmp_path: Path) -> None:
    output = run_engine(make_data(1, data_parallel_size=1), tmp_path, processes=0)
    assert output.code == 0, output.text
    assert len(output.losses()) == 3


def test_fp16_on_a_cpu_and_a_missing_deepspeed_are_refused_with_a_remedy(tmp_path: Path) -> None:
    data = make_data(data_parallel_size=1)
    output = run_engine(data | {"train": TRAIN | {"precision": "fp16"}}, tmp_path, processes=0)
    assert output.code == 2
    assert "train.precision: DeepSpeed does not support fp16 on a CPU; use bf16 or fp32" in output.text
    (tmp_path / "deepspeed.py").write_text("raise ImportError('there is none here')")
    output = run_engine(data, tmp_path, processes=0, variables={"PYTHONPATH": str(tmp_path)})
    assert output.code == 2
    assert "importing it failed: there is none here; pip install 'parlab[node]'" in output.text


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (make_data(0, zero_offload="optimizer"), "parallel.zero_offload"),
        (make_data(2, zero_offload="all"), "parallel.zero_offload"),
        (make_data(1, tensor_parallel_size=2), "parallel.tensor_parallel_size"),
        ({"model": {"implementation": "huggingface"}}, "model.implementation"),
    ],
)
def test_configurations_that_deepspeed_does_not_support_are_refused(data: dict[str, Any], field: str) -> None:
    config, problems = check(data)
    assert config is None
    assert [problem.field for problem in problems] == [field]
    assert "use " in problems[0].message
