"""Engine zero beside DeepSpeed called directly: the same network, batch, optimizer and settings."""

from collections.abc import Sequence
from functools import partial
from statistics import geometric_mean, mean
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
    rank: int, world_size: int, *, stages: Sequence[int] = STAGES, is_quick: bool = False, ours_first: bool = True
) -> Sequence[tuple[Step, Step]]:
    """Make the steps of both ways for each stage; who is built first gets the better or worse place in memory."""
    pairs: list[tuple[Step, Step]] = []
    for stage in stages:
        here = Rank(make_config(stage, is_quick=is_quick), Place(rank, world_size, rank, world_size))
        if ours_first:
            ours, theirs = _ours(here), _theirs(here)
        else:
            theirs, ours = _theirs(here), _ours(here)
        pairs.append((ours, theirs))
    return pairs


def _ours(here: Rank) -> Step:
    trainer = ZeroTrainer(here)
    return lambda: trainer.train_step(1)


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
    """Time a step of each stage, in processes that build either way first; the ratio is that of the worst stage."""
    rounds = scale.repeats(25)
    stages, orders = ((2,), (True,)) if scale.is_quick else (STAGES, (True, False))
    measured = [
        side_by_side(partial(prepare, stages=stages, is_quick=scale.is_quick, ours_first=first), RANKS, rounds)
        for first in orders
    ]
    times = dict(zip(stages, zip(*measured, strict=True), strict=True))
    ratios = {stage: geometric_mean(one.ratio for one in found) for stage, found in times.items()}
    shown = ", ".join(
        f"stage {stage} {1000 * mean(one.theirs for one in found):.0f} ms, {ratios[stage]:.2f} x"
        for stage, found in times.items()
    )
    ours = 1000 * mean(one.ours for one in times[2])
    return Result(ours, "ms/step", f"DeepSpeed: {shown}", min(ratios.values()), rounds * len(orders))
