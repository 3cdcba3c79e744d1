"""Engine zero against DeepSpeed called directly: the same network, batch, optimizer and settings."""

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
    """Return the configuration of a GPT of 4 layers with 2 micro batches of 2 per rank."""
    model = TINY if is_quick else MODEL
    parallel = {"engine": "zero", "data_parallel_size": RANKS, "zero_stage": stage}
    train = {"global_batch_size": 8, "micro_batch_size": 2}
    return RunConfig.model_validate(
        {"model": model, "train": train, "parallel": parallel, "cluster": {"device": "cpu"}}
    )


def prepare(
    rank: int, world_size: int, *, stages: Sequence[int] = STAGES, is_quick: bool = False, ours_first: bool = True
) -> Sequence[tuple[Step, Step]]:
    """Return a step of each implementation for each stage; the order of creation affects the memory layout."""
    pairs: list[tuple[Step, Step]] = []
    for stage in stages:
        own_rank = Rank(make_config(stage, is_quick=is_quick), Place(rank, world_size, rank, world_size))
        if ours_first:
            ours, theirs = _ours(own_rank), _theirs(own_rank)
        else:
            theirs, ours = _theirs(own_rank), _ours(own_rank)
        pairs.append((ours, theirs))
    return pairs


def _ours(own_rank: Rank) -> Step:
    trainer = ZeroTrainer(own_rank)
    return lambda: trainer.train_step(1)


def _theirs(own_rank: Rank) -> Step:
    config, rank = own_rank.config, own_rank.place.rank
    network: nn.Module = build(config, CPU)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.train.learning_rate, fused=True)
    # Imported the same way, so that neither side uses DeepSpeed's C++ extension.
    deepspeed: Any = import_deepspeed(own_rank)
    settings = deepspeed_settings(config, sum(parameter.numel() for parameter in network.parameters()))
    engine = deepspeed.initialize(model=network, optimizer=optimizer, config=settings)[0]

    def step() -> None:
        for arguments in micro_batches(config, 1, rank, CPU):
            engine.backward(engine(*arguments))
            engine.step()

    return step


def zero_vs_deepspeed(scale: Scale) -> Result:
    """Measure a step of each stage, with both orders of creation; the ratio is the worst over the stages."""
    rounds = scale.repeats(25)
    stages, orders = ((2,), (True,)) if scale.is_quick else (STAGES, (True, False))
    measured = [
        side_by_side(partial(prepare, stages=stages, is_quick=scale.is_quick, ours_first=first), RANKS, rounds)
        for first in orders
    ]
    times = dict(zip(stages, zip(*measured, strict=True), strict=True))
    ratios = {stage: geometric_mean(order.ratio for order in by_order) for stage, by_order in times.items()}
    details = ", ".join(
        f"stage {stage} {1000 * mean(order.theirs for order in by_order):.0f} ms, {ratios[stage]:.2f} x"
        for stage, by_order in times.items()
    )
    ours = 1000 * mean(order.ours for order in times[2])
    return Result(ours, "ms/step", f"DeepSpeed: {details}", min(ratios.values()), rounds * len(orders))
