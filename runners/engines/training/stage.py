"""Training on one rank of a pipeline: its layers, transfers and optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from runners.config import RunConfig
from runners.engines.process.memory import memory_meter
from runners.engines.process.process_group import barrier
from runners.engines.process.timers import StepTimes, Timers
from runners.engines.training.data import make_batch
from runners.engines.training.emulated import EmulatedPasses
from runners.engines.training.executor import Boundary, Executor
from runners.engines.training.transfers import Channels
from runners.models.gpt import GPTStage
from runners.schedules import Operation, Schedule, layers_of_stages, schedule


class StepResult(NamedTuple):
    """Measurements of one step on one rank."""

    times: StepTimes
    loss: float | None
    """Mean over the predicted tokens of the global batch; None except on the last stage, and if compute is emulated."""
    memory_bytes: int
    """Memory at the end of the step."""
    memory_peak_bytes: int
    """Peak memory during the step."""


class PipelineStage:
    """One rank of a pipeline: create it on every rank, then call train_step(1), train_step(2), ... on all of them.

    The weights after a step depend neither on the number of stages nor on the schedule, except for the summation order
    of floating point numbers. Gradients stay available until the next step (`gradients()`).
    """

    def __init__(
        self, config: RunConfig, rank: int = 0, device: torch.device | None = None, channels: Channels | None = None
    ) -> None:
        """Initialize this rank's layers and create its optimizer and receive buffers on `device` (default: CPU)."""
        self.config = config
        self.device = device or torch.device("cpu")
        self._phase = "model"
        parallel = config.parallel
        num_ranks, num_chunks = parallel.pipeline_parallel_size, parallel.virtual_stages
        self.is_first, self.is_last = rank == 0, rank == num_ranks - 1
        self.layers = layers_of_stages(config.model.num_layers, num_ranks * num_chunks)[rank::num_ranks]
        """Layers of each chunk."""
        is_emulated = config.train.compute == "emulated"
        self.model = nn.ModuleList(
            nn.Identity() if is_emulated else GPTStage(config.model, layers, config.train.seed, self.device)
            for layers in self.layers
        )
        self.num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.optimizer = None if is_emulated else _optimizer(self.model, config)
        self._timers = Timers(self.device)
        self.memory = memory_meter(self.device)
        self._precision = torch.bfloat16 if config.train.precision == "bf16" else torch.float32
        shape = (config.train.micro_batch_size, config.model.sequence_length, config.model.hidden_size)
        boundary = Boundary(shape, self._precision, parallel.wire_precision)
        self._emulated = EmulatedPasses(config, rank, boundary) if is_emulated else None
        self._executor = Executor(
            schedule_of(config),
            rank,
            list(self.model),
            self._forward,
            channels or Channels(),
            boundary,
            self._timers,
            self.device,
            self._emulated,
            # A steep warm-up is chosen for links whose latency spans that many micro batches.
            ahead=parallel.warmup_slope,
        )
        self._tokens: tuple[Tensor, ...] = ()
        self._targets: tuple[Tensor, ...] = ()

    @property
    def phase(self) -> str:
        """Current phase for failure reports: model, data, forward, backward or optimizer."""
        return self._executor.phase if self._phase == "passes" else self._phase

    def train_step(self, step: int) -> StepResult:
        """Train on the batch of a step (counted from 1) and measure it.

        The clock starts after a barrier of all ranks, with the batch on its device; it stops when this rank's optimizer
        step and sends have completed. Raises what torch raises when memory does not suffice, and RuntimeError if
        another rank has ended or does not respond within launcher.collective_timeout_s.
        """
        self._phase = "data"
        self._load(step)
        self.memory.begin_step()
        barrier(self.device)
        self._timers.begin_step()
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        self._phase = "passes"
        losses = self._executor.run()
        self._phase = "optimizer"
        with self._timers.span("optimizer"):
            if self.optimizer is not None:
                self.optimizer.step()
            elif self._emulated is not None:
                self._emulated.optimizer()
        self._executor.finish_sends()
        times = self._timers.finish_step()
        loss = float(torch.stack(losses).sum()) if losses and self._emulated is None else None
        return StepResult(times, loss, self.memory.now(), self.memory.peak())

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the last step by parameter name, e.g. blocks.3.mlp.up.weight."""
        return {name: p.grad for chunk in self.model for name, p in chunk.named_parameters() if p.grad is not None}

    def weights(self) -> dict[str, Tensor]:
        """Return the weights of this rank by parameter name."""
        return {name: tensor for chunk in self.model for name, tensor in chunk.state_dict().items()}

    def carried_errors(self) -> dict[str, Tensor]:
        """Return the rounding errors that the next step of this rank adds to its messages."""
        return self._executor.carried_errors()

    def carry_errors(self, errors: Mapping[str, Tensor]) -> None:
        """Continue with rounding errors of an earlier process."""
        self._executor.carry_errors(errors)

    def _load(self, step: int) -> None:
        if not (self.is_first or self.is_last) or self._emulated is not None:
            return
        batch, size = make_batch(self.config, step), self.config.train.micro_batch_size
        if self.is_first:
            self._tokens = torch.split(batch.tokens.to(self.device), size)
        if self.is_last:
            self._targets = torch.split(batch.targets.to(self.device), size)

    def _forward(self, operation: Operation, x: Tensor | None) -> Tensor:
        chunk = cast(GPTStage, self.model[operation.chunk])
        targets = self._targets[operation.micro_batch] if chunk.head is not None else None
        with self._autocast():
            output: Tensor = chunk(self._tokens[operation.micro_batch] if x is None else x, targets)
            if chunk.head is not None:  # micro batches have equal size, so the mean of their means is the mean
                output = output / self.config.num_micro_batches
        return output

    def _autocast(self) -> AbstractContextManager[object]:
        if self._precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._precision)


def schedule_of(config: RunConfig) -> Schedule:
    """Return the schedule of a configuration: the operations of every rank."""
    parallel = config.parallel
    return schedule(
        parallel.schedule,
        parallel.pipeline_parallel_size,
        config.num_micro_batches,
        warmup_slope=parallel.warmup_slope,
        virtual_stages=parallel.virtual_stages,
    )


def _optimizer(model: nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    """Create the fused optimizer, one kernel over all weights; its state is fp32 for every compute precision."""
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
    }
    return kinds[config.train.optimizer](model.parameters(), lr=config.train.learning_rate, fused=True)
