"""Engine zero beside DeepSpeed called directly: the same network, batch, optimizer and settings."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from runners.config import RunConfig
from runners.engines.networks import build
from runners.engines.process_group import Place
from runners.engines.rank import Rank
from runners.engines.zero import ZeroTrainer, micro_batches
from runners.engines.zero_settings import deepspeed_settings, import_deepspeed
from tests.bench.ranks import TINY, Step, side_by_side
from tests.bench.result import Result, Scale

RANKS = 2
MODEL = {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "sequence_length": 128, "vocab_size": 1024}
CPU = torch.device("cpu")
STAGES = (0, 1, 2, 3)


def make_config(stage: int, *, is_quick: bool = False) -> RunConfig:
    """Make a GPT of 4 layers in 2 micro batches of 2 for each rank."""
    model = TINY if is_quick else MODEL
    parallel = {"engine": "zero", "data_parallel_size": RANKS, "zero_stage": stage}
    train = {"global_batch_size": 8, "micro_batch_size": 2}
    return RunConfig.model_validate(
        {"model": model, "train": train, "parallel": parallel, "cluster": {"device": "cpu"}}
    )


def prepare(
    rank: int, world_size: int, *, stages: Sequence[int] = STAGES, is_quick: bool = False
) -> Sequence[tuple[Step, Step]]:
    """Make the steps of both ways for each stage."""
    pairs: list[tuple[Step, Step]] = []
    for stage in stages:
        config = make_config(stage, is_quick=is_quick)
        here = Rank(config, Place(rank, world_size, rank, world_size))
        ours = ZeroTrainer(here)
        pairs.append((lambda trainer=ours: trainer.train_step(1), _theirs(here)))  # type: ignore[misc]
    return pairs


def _theirs(here: Rank) -> Step:
    config, rank = here.config, here.place.rank
    network: nn.Module = build(config, CPU)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.train.learning_rate, fused=True)
    # The same import: without DeepSpeed's C++ extension on either side.
    deepspeed: Any = import_deepspeed(here)
    settings = deepspeed_settings(config, sum(parameter.numel() for parameter in network.parameters()))
    engine = deepspeed.initialize(model=network, optimizer=optimizer, config=settings)[0]

    def step() -> None:
        for arguments in micro_batches(config, 1, rank, CPU):
            engine.backward(engine(*arguments))
            engine.step()

    return step


def zero_vs_deepspeed(scale: Scale) -> Result:
    """Time a step of each stage; the ratio is that of the stage where the engine is at its worst."""
    rounds = scale.repeats(7)
    stages = STAGES[2:3] if scale.is_quick else STAGES
    prepared = partial(prepare, stages=stages, is_quick=scale.is_quick)
    times = dict(zip(stages, side_by_side(prepared, RANKS, rounds), strict=True))
    shown = ", ".join(f"stage {stage} {1000 * one.theirs:.0f} ms, {one.ratio:.2f} x" for stage, one in times.items())
    worst = min(one.ratio for one in times.values())
    return Result(1000 * times[2].ours, "ms/step", f"DeepSpeed: {shown}", worst, rounds)
