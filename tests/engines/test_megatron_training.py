"""Every layout of data, tensor and pipeline parallel ranks trains like one process."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.config import RunConfig
from runners.engines.training.megatron_stage import MegatronRank
from tests.engines.ranks import Trained, train_in_layouts, train_in_one_process

pytestmark = pytest.mark.slow

STEPS = 5
CPU = torch.device("cpu")
MODEL: dict[str, Any] = {
    "num_layers": 8,
    "hidden_size": 32,
    "num_attention_heads": 8,
    "sequence_length": 16,
    "vocab_size": 64,
}
BERT: dict[str, Any] = {"kind": "bert", "attention_mask": "bidirectional"}
PREFIX: dict[str, Any] = {"attention_mask": "prefix", "prefix_length": 5}
SEQUENCE: dict[str, Any] = {"sequence_parallel": True}
ZERO_BUBBLE: dict[str, Any] = {"schedule": "zb-h1"}
INTERLEAVED: dict[str, Any] = {"schedule": "interleaved-1f1b", "virtual_stages": 2}


def make_config(
    layout: tuple[int, int, int] = (1, 1, 1), model: dict[str, Any] | None = None, **fields: Any
) -> RunConfig:
    """Return a configuration of (dp, tp, pp) with just enough micro batches to fill the pipeline, at least two."""
    sizes = dict(zip(("data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size"), layout, strict=True))
    names = ("sequence_parallel", "schedule", "virtual_stages", "wire_precision", "warmup_slope")
    parallel = {name: value for name, value in fields.items() if name in names}
    train = {name: value for name, value in fields.items() if name not in names}
    return RunConfig.model_validate(
        {
            "model": {**MODEL, **(model or {})},
            "train": {
                "global_batch_size": 16,
                "micro_batch_size": 16 // (layout[0] * max(2, layout[2])),
                "learning_rate": 1e-2,
                **train,
            },
            "parallel": {"engine": "megatron", "schedule": "gpipe", **sizes, **parallel},
        }
    )


def alone(config: RunConfig, steps: int = STEPS) -> list[float]:
    rank = MegatronRank(config, CPU)
    return [sum(rank.train_step(step).losses.values()) for step in range(1, steps + 1)]


@pytest.fixture(scope="module")
def gpt() -> Trained:
    return train_in_one_process(make_config(), STEPS, CPU)


@pytest.fixture(scope="module")
def bert() -> list[float]:
    return alone(make_config(model=BERT))


def test_one_rank_trains_the_gpt_of_the_pipeline(gpt: Trained) -> None:
    assert alone(make_config()) == pytest.approx(gpt.losses, abs=1e-5)
    with_prefix = train_in_one_process(make_config(model=PREFIX), STEPS, CPU)
    assert alone(make_config(model=PREFIX)) == pytest.approx(with_prefix.losses, abs=1e-5)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_does_not_change_the_losses(recompute: str, gpt: Trained) -> None:
    assert alone(make_config(recompute=recompute)) == pytest.approx(gpt.losses, abs=1e-6)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_16_bit_losses_are_close_to_fp32(precision: str, gpt: Trained) -> None:
    losses = alone(make_config(precision=precision))
    assert losses == pytest.approx(gpt.losses, rel=2e-2)
    assert losses != gpt.losses


def test_an_overflow_skips_the_step_and_the_second_one_halves_the_scale() -> None:
    rank = MegatronRank(make_config(precision="fp16"), CPU)
    rank.loss_scale.value = 2.0**40
    before = rank.flat.weights.detach().clone()
    results = [rank.train_step(step) for step in (1, 2, 3)]
    assert [result.is_skipped for result in results] == [True] * 3
    assert [result.loss_scale for result in results] == [2.0**40, 2.0**40, 2.0**39]
    assert torch.equal(rank.flat.weights, before)


def test_a_constant_loss_scale_changes_nothing_but_rounding() -> None:
    losses = [alone(make_config(precision="fp16", loss_scale=scale)) for scale in (1024, 4096)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_clipping_takes_the_norm_of_all_gradients(gpt: Trained) -> None:
    expected = float(torch.stack([gradient.norm() for gradient in gpt.gradients.values()]).norm())
    rank = MegatronRank(make_config(gradient_clipping=expected / 4), CPU)
    assert rank.train_step(1).gradient_norm == pytest.approx(expected, rel=1e-5)
    assert float(rank.flat.gradient.norm()) == pytest.approx(expected / 4, rel=1e-4)
    unclipped = MegatronRank(make_config(gradient_clipping=expected * 4), CPU)
    unclipped.train_step(1)
    assert float(unclipped.flat.gradient.norm()) == pytest.approx(expected, rel=1e-5)


LAYOUTS_OF_2 = {
    "gpt dp2": make_config((2, 1, 1)),
    "gpt tp2": make_config((1, 2, 1)),
    "gpt tp2 clipped": make_config((1, 2, 1), gradient_clipping=0.5),
    "gpt tp2 sequence clipped": make_config((1, 2, 1), **SEQUENCE, gradient_clipping=0.5),
    "gpt pp2 clipped": make_config((1, 1, 2), gradient_clipping=0.5),
    "gpt tp2 sequence, full recompute": make_config((1, 2, 1), **SEQUENCE, recompute="full"),
    "gpt pp2 interleaved": make_config((1, 1, 2), **INTERLEAVED),
    "gpt dp2 zero bubble": make_config((2, 1, 1), **ZERO_BUBBLE),
    "gpt tp2 sequence zero bubble": make_config((1, 2, 1), **SEQUENCE, **ZERO_BUBBLE),
    "gpt pp2 zero bubble": make_config((1, 1, 2), **ZERO_BUBBLE),
    "gpt pp2 zero bubble, full recompute": make_config((1, 1, 2), **ZERO_BUBBLE, recompute="full"),
    "gpt bf16 pp2 zero bubble": make_config((1, 1, 2), **ZERO_BUBBLE, precision="bf16"),
    "bert pp2 zero bubble": make_config((1, 1, 2), BERT, **ZERO_BUBBLE),
    "gpt prefix tp2 sequence": make_config((1, 2, 1), PREFIX, **SEQUENCE),
    "gpt fp16 tp2": make_config((1, 2, 1), precision="fp16"),
    "gpt bf16 pp2": make_config((1, 1, 2), precision="bf16"),
    "bert dp2": make_config((2, 1, 1), BERT),
    "bert tp2": make_config((1, 2, 1), BERT),
    "bert tp2 sequence": make_config((1, 2, 1), BERT, **SEQUENCE),
    "bert pp2": make_config((1, 1, 2), BERT, schedule="1f1b"),
}
OF_8 = [(8, 1, 1), (1, 8, 1), (1, 1, 8), (4, 2, 1), (2, 4, 1), (4, 1, 2), (2, 1, 4), (1, 2, 4), (1, 4, 2), (2, 2, 2)]
SCHEDULES: dict[str, dict[str, Any]] = {
    "1f1b": {"schedule": "1f1b"},
    "1f1b slope 2": {"schedule": "1f1b", "warmup_slope": 2},
    "interleaved": INTERLEAVED,
    "zero bubble": ZERO_BUBBLE,
}


def every_schedule() -> dict[str, RunConfig]:
    """Return a configuration for every pipeline layout of eight ranks and every schedule, with varying other options.

    Networks, recomputation and sequence parallelism (with tensor parallel ranks) alternate, so that each is combined
    with every schedule and with each other. There is one layer per stage, because collectives dominate the time.
    """
    configs = {}
    pipelines = [layout for layout in OF_8 if layout[2] > 1]
    for (index, layout), (turn, (name, schedule)) in product(enumerate(pipelines), enumerate(SCHEDULES.items())):
        is_bert, is_split = (index + turn // 2) % 2 == 1, layout[1] > 1 and (index + turn) % 2 == 1
        recompute = ("none", "selective", "full")[(index + turn) % 3]
        fields = schedule | {"sequence_parallel": is_split, "recompute": recompute}
        depth = {"num_layers": layout[2] * schedule.get("virtual_stages", 1)}
        title = f"{'bert' if is_bert else 'gpt'} {layout} {name}, sequence {is_split}, recompute {recompute}"
        configs[title] = make_config(layout, (BERT if is_bert else {}) | depth, **fields)
    return configs


FLAT = {"num_layers": 2}
LAYOUTS_OF_8 = {
    **{f"gpt {layout}": make_config(layout) for layout in OF_8},
    **every_schedule(),
    "bert (8, 1, 1) full recompute": make_config((8, 1, 1), BERT | FLAT, recompute="full"),
    "bert (1, 8, 1) sequence, selective recompute": make_config(
        (1, 8, 1), BERT | FLAT, **SEQUENCE, recompute="selective"
    ),
    "gpt (4, 2, 1) sequence, full recompute": make_config((4, 2, 1), FLAT, **SEQUENCE, recompute="full"),
    "bert (2, 4, 1) sequence": make_config((2, 4, 1), BERT | FLAT, **SEQUENCE),
}


@pytest.mark.parametrize(("world_size", "configs"), [(2, LAYOUTS_OF_2), pytest.param(8, LAYOUTS_OF_8)])
def test_every_layout_has_the_losses_of_one_process(
    world_size: int, configs: dict[str, RunConfig], gpt: Trained, bert: list[float], tmp_path: Path
) -> None:
    trained = train_in_layouts(configs, world_size, STEPS, "cpu", tmp_path)
    references = {(MODEL["num_layers"], "gpt"): gpt.losses, (MODEL["num_layers"], "bert"): bert}
    clipped = alone(make_config(gradient_clipping=0.5))
    assert clipped != pytest.approx(gpt.losses, abs=1e-4)
    for name, ranks in trained.items():
        config = configs[name]
        stage_size = world_size // config.parallel.pipeline_parallel_size
        assert all(loss is None for rank in ranks[:-stage_size] for loss in rank.losses)
        network = config.model.num_layers, config.model.kind
        expected: Any
        if "clipped" in name:
            expected = clipped
        elif "prefix" in name or "16" in name:
            expected = alone(make_config(model=config.model.model_dump(), precision=config.train.precision))
        else:
            if network not in references:
                references[network] = alone(make_config(model=config.model.model_dump()))
            expected = references[network]
        tolerance = 2e-2 if "16" in name else 1e-4
        for rank in ranks[-stage_size:]:
            assert rank.losses == pytest.approx(expected, abs=tolerance), name
