"""A pipeline trains like one process on the full batch, with every layout and schedule."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.config import ParallelSection, RunConfig
from runners.engines.training.stage import PipelineStage
from tests.engines.ranks import Trained, train_in_one_process, train_in_pipeline

STEPS = 3
WORLD_SIZES = (1, 2, 3, 4)
GPUS = torch.cuda.device_count()
# Always the CPU, and GPUs if there is one for each rank.
PLACES = [
    *(pytest.param("cpu", size, marks=pytest.mark.slow) for size in WORLD_SIZES),
    *(("cuda", size) for size in WORLD_SIZES if size <= GPUS),
]


MODEL = {
    "num_layers": 9,  # not divisible by 2 or 4, and enough for two chunks on each of four stages
    "hidden_size": 32,
    "num_attention_heads": 4,
    "sequence_length": 12,
    "vocab_size": 64,
}
PREFIX = {"attention_mask": "prefix", "prefix_length": 5}


def make_config(stages: int = 1, model: dict[str, Any] | None = None, **fields: Any) -> RunConfig:
    """Return a configuration; `fields` belong to the section parallel if it has them, else to train."""
    parallel = {name: value for name, value in fields.items() if name in ParallelSection.model_fields}
    train = {name: value for name, value in fields.items() if name not in parallel}
    return RunConfig.model_validate(
        {
            "model": {**MODEL, **(model or {})},
            "train": {"global_batch_size": 24, "micro_batch_size": 2, "learning_rate": 1e-2, **train},
            "parallel": {"pipeline_parallel_size": stages, **parallel},
        }
    )


def schedules(stages: int) -> dict[str, RunConfig]:
    """Return a configuration for each schedule that supports this number of stages."""
    configs = {
        "gpipe": make_config(stages, schedule="gpipe"),
        "1f1b": make_config(stages),
        "1f1b, slope 2": make_config(stages, warmup_slope=2),
        "zb-h1": make_config(stages, schedule="zb-h1"),
    }
    if stages > 1:
        configs["interleaved-1f1b"] = make_config(stages, schedule="interleaved-1f1b", virtual_stages=2)
    return configs


@pytest.fixture(scope="module")
def reference() -> Trained:
    return train_in_one_process(make_config(), STEPS, torch.device("cpu"))


@pytest.fixture(scope="module")
def reference_with_prefix() -> Trained:
    return train_in_one_process(make_config(model=PREFIX), STEPS, torch.device("cpu"))


@pytest.mark.parametrize(("device", "stages"), PLACES)
def test_losses_gradients_and_weights_equal_those_of_one_process(
    device: str,
    stages: int,
    reference: Trained,
    reference_with_prefix: Trained,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with capsys.disabled():
        print(f"\n{stages} stages on {device}", end=" ")
    configs = schedules(stages)
    others = {
        "bf16": make_config(stages, precision="bf16"),
        "bf16, zb-h1": make_config(stages, precision="bf16", schedule="zb-h1"),
        "prefix": make_config(stages, PREFIX),
        "bf16 on the wire": make_config(stages, wire_precision="bf16"),
        "fp16 on the wire": make_config(stages, wire_precision="fp16"),
        "int8 on the wire": make_config(stages, wire_precision="int8"),
    }
    if stages == 3:  # an odd number matters for layers and schedules, not for precisions
        others = {}
    trained = train_in_pipeline({**configs, **others}, stages, STEPS, device, tmp_path)
    for schedule in configs:
        ranks = trained[schedule]
        assert all(loss is None for rank in ranks[:-1] for loss in rank.losses)
        assert_near({"loss": torch.tensor(ranks[-1].losses)}, {"loss": torch.tensor(reference.losses)}, 1e-5)
        assert_near(united([rank.gradients for rank in ranks]), reference.gradients, 1e-6 if device == "cpu" else 1e-5)
        # A tenth of one step: where a gradient is only rounding error, Adam still takes a full step.
        assert_near(united([rank.weights for rank in ranks]), reference.weights, 1e-3)
    if not others:
        return
    assert_bf16(trained["bf16"], torch.device(device), reference)
    assert trained["bf16, zb-h1"][-1].losses == pytest.approx(trained["bf16"][-1].losses, abs=1e-5)
    assert trained["prefix"][-1].losses == pytest.approx(reference_with_prefix.losses, abs=1e-5)
    for wire in ("bf16", "fp16", "int8"):
        losses = trained[f"{wire} on the wire"][-1].losses
        assert losses == pytest.approx(reference.losses, rel=1e-2)
        assert (losses == trained["1f1b"][-1].losses) == (stages == 1)


@pytest.mark.slow
def test_eight_stages_train_what_one_process_trains_in_every_schedule(tmp_path: Path) -> None:
    model = {"num_layers": 16}
    fields: dict[str, dict[str, Any]] = {
        "gpipe": {"schedule": "gpipe"},
        "1f1b": {},
        "1f1b, slope 2": {"warmup_slope": 2},
        "zb-h1": {"schedule": "zb-h1"},
        "interleaved-1f1b": {"schedule": "interleaved-1f1b", "virtual_stages": 2},
    }
    configs = {name: make_config(8, model, global_batch_size=16, **more) for name, more in fields.items()}
    expected = train_in_one_process(make_config(model=model, global_batch_size=16), STEPS, torch.device("cpu")).losses
    for name, ranks in train_in_pipeline(configs, 8, STEPS, "cpu", tmp_path).items():
        assert ranks[-1].losses == pytest.approx(expected, abs=1e-4), name


def assert_bf16(ranks: list[Trained], device: torch.device, reference: Trained) -> None:
    """Losses and gradients are close to fp32, and losses are equal in every layout."""
    alone = PipelineStage(make_config(precision="bf16"), device=device)
    assert ranks[-1].losses == pytest.approx([alone.train_step(step).loss for step in range(1, STEPS + 1)], abs=1e-5)
    assert ranks[-1].losses == pytest.approx(reference.losses, rel=1e-2)
    assert ranks[-1].losses != reference.losses
    gradients = united([rank.gradients for rank in ranks])
    assert {gradient.dtype for gradient in gradients.values()} == {torch.float32}
    assert_near(gradients, reference.gradients, 0.01)


def test_the_reference_learns(reference: Trained) -> None:
    first, *_, last = [loss or math.nan for loss in reference.losses]
    assert last < first - 0.1
    assert max(float(gradient.abs().max()) for gradient in reference.gradients.values()) > 0.01


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_every_optimizer_equals_torchs(optimizer: str) -> None:
    config = make_config(optimizer=optimizer)
    expected = train_in_one_process(config, STEPS, torch.device("cpu"))
    stage = PipelineStage(config)
    losses = [stage.train_step(step).loss for step in range(1, STEPS + 1)]
    assert losses == pytest.approx(expected.losses, abs=1e-5)


@pytest.mark.slow
def test_bf16_keeps_one_copy_of_the_weights_for_all_micro_batches() -> None:
    config = make_config(schedule="gpipe", precision="bf16")
    stage = PipelineStage(config)
    shape = sorted(stage.model.get_parameter("0.blocks.0.mlp.up.weight").shape)
    saved = list[int]()

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.bfloat16 and sorted(tensor.shape) == shape:
            saved.append(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        stage.train_step(1)
    weights = 2 * config.model.num_layers  # up and output of each layer
    assert len(saved) == weights * config.num_micro_batches  # all in flight at once
    assert len(set(saved)) == weights


def united(parts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Merge the tensors of all stages; no name may occur on two stages."""
    whole = {name: tensor for part in parts for name, tensor in part.items()}
    assert len(whole) == sum(map(len, parts))
    return whole


def assert_near(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert float((tensor - expected[name]).abs().max()) <= tolerance, name
