"""Engine pipeline against DeepSpeed's PipelineModule: the same network, batch, schedule (1F1B) and optimizer."""

import importlib
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from runners.config import RunConfig
from runners.engines.process.process_group import Place
from runners.engines.process.rank import Rank
from runners.engines.training.data import make_batch
from runners.engines.training.stage import PipelineStage
from runners.engines.training.transfers import open_channels
from runners.engines.zero_settings import import_deepspeed
from runners.models.gpt import GPTStage
from tests.bench.pipelines import CPU, RANKS, ROUNDS, loss, make_config
from tests.bench.ranks import Step, side_by_side
from tests.bench.result import Result, Scale


def prepare(rank: int, world_size: int, *, is_quick: bool = False) -> Sequence[tuple[Step, Step]]:
    """Return a step of each implementation."""
    config = make_config("1f1b", world_size, is_quick=is_quick)
    channels = open_channels([range(world_size)], rank, CPU, timedelta(seconds=300))
    ours = PipelineStage(config, rank, CPU, channels)
    return [(lambda: ours.train_step(1), _theirs(config, rank, world_size))]


def _theirs(config: RunConfig, rank: int, world_size: int) -> Step:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    deepspeed: Any = import_deepspeed(Rank(config, Place(rank, world_size, rank, world_size)))
    network = GPTStage(config.model, range(config.model.num_layers), config.train.seed, CPU)
    assert network.embeddings is not None
    assert network.head is not None
    layers: list[nn.Module] = [network.embeddings, *network.blocks.values(), network.head]
    pipe: Any = importlib.import_module("deepspeed.pipe")
    module = pipe.PipelineModule(
        layers, num_stages=world_size, loss_fn=loss, partition_method="type:block", activation_checkpoint_interval=0
    )
    optimizer = torch.optim.Adam(module.parameters(), lr=config.train.learning_rate, fused=True)
    settings = {
        "train_batch_size": config.train.global_batch_size,
        "train_micro_batch_size_per_gpu": config.train.micro_batch_size,
        "gradient_accumulation_steps": config.num_micro_batches,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    engine = deepspeed.initialize(model=module, optimizer=optimizer, config=settings)[0]

    def micro_batches() -> Iterator[tuple[Tensor, Tensor]]:
        batch, size = make_batch(config, 1), config.train.micro_batch_size
        return iter(zip(torch.split(batch.tokens, size), torch.split(batch.targets, size), strict=True))

    return lambda: engine.train_batch(data_iter=micro_batches())


def pipeline_vs_deepspeed(scale: Scale) -> Result:
    """Compare a step of 1F1B, the only schedule that DeepSpeed has."""
    rounds = scale.repeats(ROUNDS)
    (times,) = side_by_side(partial(prepare, is_quick=scale.is_quick), RANKS, rounds)
    return Result.comparison(times.ratio, f"DeepSpeed: {times.text}", rounds)
