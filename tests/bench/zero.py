"""Engine zero against DeepSpeed called directly: the same network, batch, optimizer and settings."""

import gc
from collections.abc import Sequence
from functools import partial
from statistics import geometric_mean, mean
from typing import Any

import torch
from torch import nn

from runners.config import RunConfig
from runners.engines.process.process_group import Place
from runners.engines.process.rank import Rank
from runners.engines.training.networks import build
from runners.engines.zero import ZeroTrainer, micro_batches
from runners.engines.zero_settings import deepspeed_settings, import_deepspeed
from tests.bench.ranks import TINY, Step, Times, side_by_side, step_s
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


def steps_s(configs: Sequence[RunConfig], rank: int, world_size: int) -> list[list[float]]:
    """Return the times of the steps of each setting after the warm-up, of the slowest rank, in the ranks of a launch.

    A launch for each setting would take most of the time to import torch and DeepSpeed.
    """
    times = []
    for config in configs:
        trainer = ZeroTrainer(Rank(config, Place(rank, world_size, rank, world_size)))
        own = [step_s(partial(trainer.train_step, step)) for step in range(1, config.train.iterations + 1)]
        times.append(own[config.train.warmup_steps :])
        trainer.close()
        del trainer
        gc.collect()  # DeepSpeed's engines are in cycles of references
    return times


def zero_vs_deepspeed(scale: Scale) -> Result:
    """Compare a step of each stage, with both orders of creation; the ratio is the worst over the stages."""
    rounds = scale.repeats(25)
    stages, orders = ((2,), (True,)) if scale.is_quick else (STAGES, (True, False))
    measured = [
        side_by_side(partial(prepare, stages=stages, is_quick=scale.is_quick, ours_first=first), RANKS, rounds)
        for first in orders
    ]
    means = {stage: _mean(pairs) for stage, pairs in zip(stages, zip(*measured, strict=True), strict=True)}
    details = ", ".join(f"stage {stage} {pair.text}" for stage, pair in means.items())
    return Result.comparison(min(pair.ratio for pair in means.values()), f"DeepSpeed: {details}", rounds * len(orders))


def _mean(pairs: Sequence[Times]) -> Times:
    """Return the means over both orders of creation."""
    return Times(
        mean(pair.ours for pair in pairs),
        mean(pair.theirs for pair in pairs),
        geometric_mean(pair.ratio for pair in pairs),
    )
