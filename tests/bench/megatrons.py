"""Engine megatron with data parallelism only, against DistributedDataParallel: same network, batch and optimizer."""

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from runners.config import RunConfig
from runners.engines.training.data import make_batch
from runners.engines.training.layout import open_layout
from runners.engines.training.megatron_stage import MegatronRank
from runners.models.gpt import GPTStage
from tests.bench.ranks import TINY, Step, side_by_side
from tests.bench.result import Result, Scale

RANKS = 2
MODEL = {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "sequence_length": 128, "vocab_size": 2048}
CPU = torch.device("cpu")


def make_config(*, is_quick: bool = False) -> RunConfig:
    """Return the configuration of a GPT of 4 layers with 2 micro batches of 4 per rank."""
    model = TINY if is_quick else MODEL
    parallel = {"engine": "megatron", "data_parallel_size": RANKS}
    train = {"global_batch_size": 16, "micro_batch_size": 4}
    return RunConfig.model_validate({"model": model, "train": train, "parallel": parallel})


def prepare(rank: int, world_size: int, *, is_quick: bool = False) -> Sequence[tuple[Step, Step]]:
    """Return a step of each implementation."""
    config = make_config(is_quick=is_quick)
    ours = MegatronRank(config, CPU, open_layout(config, rank, CPU, timedelta(seconds=300)))
    network = GPTStage(config.model, range(config.model.num_layers), config.train.seed, CPU)
    theirs = DistributedDataParallel(network, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.train.learning_rate, fused=True)
    share, size, count = (
        config.train.global_batch_size // world_size,
        config.train.micro_batch_size,
        config.num_micro_batches,
    )

    def step() -> float:
        batch = make_batch(config, 1)
        rows = slice(rank * share, (rank + 1) * share)
        optimizer.zero_grad()
        total = torch.zeros(1)
        parts = list(zip(torch.split(batch.tokens[rows], size), torch.split(batch.targets[rows], size), strict=True))
        for number, (tokens, targets) in enumerate(parts, start=1):
            with nullcontext() if number == count else theirs.no_sync():
                loss = theirs(tokens, targets) / count
                loss.backward()
            total += loss.detach()
        optimizer.step()
        dist.all_reduce(total)  # the loss of the global batch, which the engine reports too
        return float(total) / world_size

    return [(lambda: ours.train_step(1), step)]


def megatron_vs_ddp(scale: Scale) -> Result:
    """Compare a step of two replicas."""
    rounds = scale.repeats(25)
    (times,) = side_by_side(partial(prepare, is_quick=scale.is_quick), RANKS, rounds)
    return Result.comparison(times.ratio, f"DDP: {times.text}", rounds)
