"""Engine pipeline against torch.distributed.pipelining: the same network, batch, schedule and optimizer."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage as TorchStage
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn import functional

from runners.config import RunConfig
from runners.engines.training.data import make_batch
from runners.engines.training.stage import PipelineStage
from runners.engines.training.transfers import open_channels
from runners.models.gpt import GPTStage
from tests.bench.ranks import TINY, Step, side_by_side
from tests.bench.result import Result, Scale

RANKS, ROUNDS = 2, 9
MODEL = {"num_layers": 8, "hidden_size": 256, "num_attention_heads": 4, "sequence_length": 128, "vocab_size": 2048}
CPU = torch.device("cpu")
SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved-1f1b": ScheduleInterleaved1F1B,
}
"""Without ScheduleInterleavedZeroBubble: torch's split of the backward pass raises an error on this network."""


class _Logits(nn.Module):
    """A stage without the loss, which torch's schedules compute."""

    def __init__(self, stage: GPTStage) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, x: Tensor) -> Tensor:
        if self.stage.head is None:
            return cast(Tensor, self.stage(x))
        if self.stage.embeddings is not None:
            x = self.stage.embeddings(x)
        for block in self.stage.blocks.values():
            x = block(x)
        return cast(Tensor, self.stage.head(x))


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def make_config(schedule: str, ranks: int, *, is_quick: bool = False) -> RunConfig:
    """Return the configuration of a GPT of 8 layers with 8 micro batches of 2; in quick mode the model is tiny."""
    chunks = 2 if schedule == "interleaved-1f1b" else 1
    model = TINY | {"num_layers": 8} if is_quick else MODEL
    parallel = {"pipeline_parallel_size": ranks, "schedule": schedule, "virtual_stages": chunks}
    train = {"global_batch_size": 16, "micro_batch_size": 2}
    return RunConfig.model_validate({"model": model, "train": train, "parallel": parallel})


def prepare(rank: int, world_size: int, *, is_quick: bool = False) -> Sequence[tuple[Step, Step]]:
    """Return a step of each implementation for each schedule."""
    timeout = timedelta(seconds=300)
    line = open_channels([range(world_size)], rank, CPU, timeout)
    ring = open_channels([range(world_size)], rank, CPU, timeout, is_ring=True)
    pairs: list[tuple[Step, Step]] = []
    for name in SCHEDULES:
        config = make_config(name, world_size, is_quick=is_quick)
        ours = PipelineStage(config, rank, CPU, ring if name == "interleaved-1f1b" else line)
        pairs.append((lambda stage=ours: stage.train_step(1), _theirs(config, rank, world_size)))  # type: ignore[misc]
    return pairs


def _theirs(config: RunConfig, rank: int, world_size: int) -> Step:
    stage = PipelineStage(config, rank)  # only for its layers
    chunks = [_Logits(cast(GPTStage, chunk)) for chunk in stage.model]
    count = world_size * len(chunks)
    stages = [TorchStage(chunk, i * world_size + rank, count, CPU) for i, chunk in enumerate(chunks)]
    name = config.parallel.schedule
    schedule = SCHEDULES[name](stages if len(stages) > 1 else stages[0], config.num_micro_batches, loss_fn=loss)
    optimizer = torch.optim.Adam(stage.model.parameters(), lr=config.train.learning_rate, fused=True)

    def step() -> None:
        batch = make_batch(config, 1)
        optimizer.zero_grad()
        options = {"target": batch.targets} if rank == world_size - 1 else {}
        schedule.step(*([batch.tokens] if rank == 0 else []), **options)
        optimizer.step()

    return step


def pipeline_vs_torch(scale: Scale) -> Result:
    """Compare a step of each schedule; the ratio is the worst over the schedules."""
    rounds = scale.repeats(ROUNDS)
    times = dict(zip(SCHEDULES, side_by_side(partial(prepare, is_quick=scale.is_quick), RANKS, rounds), strict=True))
    details = ", ".join(f"{name} {pair.text}" for name, pair in times.items())
    return Result.comparison(min(pair.ratio for pair in times.values()), f"torch: {details}", rounds)
