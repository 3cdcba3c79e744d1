"""One stage of a pipeline in training: its layers, its transfers, its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from runners.config import RunConfig
from runners.engines.data import make_batch
from runners.engines.memory import memory_meter
from runners.engines.process_group import barrier
from runners.engines.transfers import Channel, Channels, Inbox, Outbox
from runners.models.gpt import GPTStage
from runners.schedules import Operation, layers_of_stages, micro_batches_in_flight, schedule
from runners.timers import StepTimes, Timers

GRADIENT_BUFFERS = 2
"""One that the backward pass reads, one that the next gradient arrives in."""


class StepResult(NamedTuple):
    """What one rank knows of one step."""

    times: StepTimes
    loss: float | None
    """Mean over all tokens of the global batch; only on the last stage."""
    memory_bytes: int
    """At the end of the step."""
    memory_peak_bytes: int
    """Most during the step."""


class PipelineStage:
    """One rank of a pipeline: build it on every rank, then call train_step(1), train_step(2), ... on all of them.

    The weights after a step do not depend on the number of stages nor on the schedule, up to the order in which
    floating point sums are taken. Gradients stay in place until the next step (`gradients()`).
    """

    def __init__(
        self, config: RunConfig, stage: int = 0, device: torch.device | None = None, channels: Channels | None = None
    ) -> None:
        """Draw the weights of stage `stage`, and make its optimizer and receive buffers on `device` (default CPU)."""
        self.config = config
        self.device = device or torch.device("cpu")
        self.phase = "model"
        """What is being done, for the report of a failure: model, data, forward, backward or optimizer."""
        num_stages = config.parallel.pipeline_parallel_size
        self.is_first, self.is_last = stage == 0, stage == num_stages - 1
        self.layers = layers_of_stages(config.model.num_layers, num_stages)[stage]
        self.model = GPTStage(config.model, self.layers, config.train.seed, self.device)
        self.num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self._optimizer = _optimizer(self.model, config)
        self._timers = Timers(self.device)
        self.memory = memory_meter(self.device)
        self._precision = torch.bfloat16 if config.train.precision == "bf16" else torch.float32
        plan = schedule(config.parallel.schedule, num_stages, config.num_micro_batches)
        self.operations = plan[stage]
        self._open_boxes(plan, stage, channels or Channels())
        self._in_flight: dict[int, tuple[Tensor, Tensor]] = {}
        self._tokens: tuple[Tensor, ...] = ()
        self._targets: tuple[Tensor, ...] = ()

    def _open_boxes(self, plan: list[list[Operation]], stage: int, channels: Channels) -> None:
        """Preallocate receive buffers: one more than the schedule holds, so that the next one arrives meanwhile."""
        in_flight = micro_batches_in_flight(self.operations)

        def inbox(channel: Channel | None, sender: int, kind: str, count: int) -> Inbox | None:
            if channel is None:
                return None
            order = [operation.micro_batch for operation in plan[sender] if operation.kind == kind]
            return Inbox(channel, order, [self._boundary() for _ in range(min(count, len(order)))])

        def outbox(channel: Channel | None) -> Outbox | None:
            return None if channel is None else Outbox(channel, limit=in_flight)

        self._activations_in = inbox(channels.activations_in, stage - 1, "F", in_flight + 1)
        self._gradients_in = inbox(channels.gradients_in, stage + 1, "B", GRADIENT_BUFFERS)
        self._activations_out = outbox(channels.activations_out)
        self._gradients_out = outbox(channels.gradients_out)

    def _boundary(self) -> Tensor:
        """Return a buffer for what crosses from stage to stage: (micro batch, sequence, hidden)."""
        model, train = self.config.model, self.config.train
        shape = (train.micro_batch_size, model.sequence_length, model.hidden_size)
        return torch.empty(shape, dtype=self._precision, device=self.device)

    def train_step(self, step: int) -> StepResult:
        """Train on the batch of a step (counted from 1) and measure it.

        The clock starts when all ranks have passed a barrier, with the batch on its device; it stops when this
        rank's optimizer is through and its sends have left. Raises what torch raises when memory does not suffice,
        and RuntimeError when another rank is gone or silent for longer than launcher.collective_timeout_s.
        """
        self.phase = "data"
        self._load(step)
        self.memory.begin_step()
        barrier(self.device)
        self._timers.begin_step()
        self._optimizer.zero_grad()
        losses = self._run_schedule()
        self.phase = "optimizer"
        with self._timers.span("optimizer"):
            self._optimizer.step()
        self._finish_sends()
        times = self._timers.finish_step()
        loss = float(torch.stack(losses).sum()) if losses else None
        return StepResult(times, loss, self.memory.now(), self.memory.peak())

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the last step by parameter name, e.g. blocks.3.mlp.up.weight."""
        return {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}

    def _load(self, step: int) -> None:
        if not (self.is_first or self.is_last):
            return
        batch, size = make_batch(self.config, step), self.config.train.micro_batch_size
        if self.is_first:
            self._tokens = torch.split(batch.tokens.to(self.device), size)
        if self.is_last:
            self._targets = torch.split(batch.targets.to(self.device), size)

    def _run_schedule(self) -> list[Tensor]:
        """Execute this stage's operations; return the shares of the loss on the last stage, nothing elsewhere."""
        for inbox in (self._activations_in, self._gradients_in):
            if inbox is not None:
                inbox.begin_step()
        losses: list[Tensor] = []
        # Entered but disabled: autocast forgets its 16-bit copies of the weights on leaving the outermost context.
        # Without this one every micro batch in flight would keep a copy of all weights of its own.
        with torch.autocast(self.device.type, enabled=False):
            for kind, micro_batch in self.operations:
                if kind == "F":
                    output = self._forward(micro_batch)
                    if self.is_last:
                        losses.append(output.detach())
                else:
                    self._backward(micro_batch)
        return losses

    def _forward(self, micro_batch: int) -> Tensor:
        self.phase = "forward"
        if self._activations_in is None:
            x = self._tokens[micro_batch]
        else:
            with self._timers.span("forward-recv", micro_batch):
                x = self._activations_in.take(micro_batch).detach().requires_grad_()
        targets = self._targets[micro_batch] if self.is_last else None
        with self._timers.span("forward-compute", micro_batch), self._arithmetic():
            output: Tensor = self.model(x, targets)
            if self.is_last:  # micro batches are equally large, so the mean over the batch is the mean of means
                output = output / self.config.num_micro_batches
        if self._activations_out is not None:
            with self._timers.span("forward-send", micro_batch):
                self._activations_out.send(output.detach())
        self._in_flight[micro_batch] = (x, output)
        return output

    def _backward(self, micro_batch: int) -> None:
        self.phase = "backward"
        x, output = self._in_flight.pop(micro_batch)
        gradient = None
        if self._gradients_in is not None:
            with self._timers.span("backward-recv", micro_batch):
                gradient = self._gradients_in.take(micro_batch)
        with self._timers.span("backward-compute", micro_batch):
            torch.autograd.backward(output, gradient)
        if self._gradients_in is not None:
            self._gradients_in.release(micro_batch)
        if self._activations_in is not None:
            self._activations_in.release(micro_batch)
        if self._gradients_out is not None and x.grad is not None:
            with self._timers.span("backward-send", micro_batch):
                self._gradients_out.send(x.grad)

    def _arithmetic(self) -> AbstractContextManager[object]:
        if self._precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._precision)

    def _finish_sends(self) -> None:
        for outbox, name in ((self._activations_out, "forward-send"), (self._gradients_out, "backward-send")):
            if outbox is not None:
                with self._timers.span(name):
                    outbox.finish_step()


def _optimizer(model: GPTStage, config: RunConfig) -> torch.optim.Optimizer:
    """Make the optimizer in its fused form, one kernel over all weights; its state is fp32 in every precision."""
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
    }
    return kinds[config.train.optimizer](model.parameters(), lr=config.train.learning_rate, fused=True)
