"""ZeRO data parallelism by DeepSpeed, stages 0 to 3. See docs/understand/engines.md.

Run `python -m runners.engines.zero --config config.json` alone or under torchrun.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from runners.config import ConfigError, Problem, RunConfig
from runners.engines.checkpoints.deepspeed_format import DeepSpeedFormat
from runners.engines.checkpoints.session import Checkpoints, NoCheckpoints, charged, open_checkpoints
from runners.engines.process.memory import MemoryMeter, memory_meter
from runners.engines.process.process_group import barrier, leave
from runners.engines.process.profiling import StepRecorder
from runners.engines.process.rank import Rank, start
from runners.engines.process.timers import StepTimes, Timers
from runners.engines.training.data import make_arguments
from runners.engines.training.networks import build
from runners.engines.zero_settings import deepspeed_settings, import_deepspeed


class MeanLoss:
    """The mean loss over the ranks, reduced asynchronously; reading it synchronizes the ranks."""

    def __init__(self, loss: torch.Tensor, ranks: int) -> None:
        self._sum, self._ranks = loss, ranks
        self._work = dist.all_reduce(loss, async_op=True)

    def value(self) -> float:
        """Wait for the mean and return it; by then every rank has finished the step."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return float(self._sum) / self._ranks


class StepResult(NamedTuple):
    """Measurements of one step on one rank."""

    times: StepTimes
    loss: MeanLoss
    """Mean over the global batch."""
    memory_bytes: int
    memory_peak_bytes: int


MicroBatches = list[tuple[torch.Tensor, ...]]


class ZeroTrainer:
    """One data parallel rank: create it on every rank, then call train_step(1), train_step(2), ... on all of them."""

    def __init__(self, rank: Rank, settings: Mapping[str, Any] | None = None) -> None:
        """Create the network and DeepSpeed's engine; `settings` overrides the DeepSpeed settings of the configuration.

        Raises ConfigError if DeepSpeed, or transformers for a Hugging Face model, is not installed.
        """
        self.rank = rank
        config = rank.config
        deepspeed = import_deepspeed(rank)
        network = build(config, rank.device)
        self.num_parameters = sum(parameter.numel() for parameter in network.parameters())
        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        optimizer = kinds[config.train.optimizer](network.parameters(), lr=config.train.learning_rate, fused=True)
        settings = settings or deepspeed_settings(config, self.num_parameters)
        self.engine, *_ = deepspeed.initialize(
            model=network, optimizer=optimizer, config=settings, dist_init_required=False
        )
        self._timers = Timers(rank.device)
        self._loss: MeanLoss | None = None
        self.memory: MemoryMeter = memory_meter(rank.device)

    def load(self, step: int) -> MicroBatches:
        """Draw this rank's part of the batch of a step (counted from 1)."""
        self.rank.phase = "data"
        return micro_batches(self.rank.config, step, self.rank.place.rank, self.rank.device)

    def train_step(self, step: int) -> StepResult:
        """Draw the batch of a step (counted from 1) and train on it."""
        return self.train(self.load(step))

    def train(self, passes: MicroBatches) -> StepResult:
        """Train on micro batches and measure it; the clock starts when every rank has finished the previous step."""
        self.memory.begin_step()
        if self._loss is None:
            barrier(self.rank.device)
        else:  # synchronizes the ranks; a barrier would add a cost that DeepSpeed called directly does not have
            self._loss.value()
        self._timers.begin_step()
        losses = []
        for number, arguments in enumerate(passes):
            self.rank.phase = "forward"
            with self._timers.span("forward-compute", number):
                loss = self.engine(*arguments)
            self.rank.phase = "backward"
            with self._timers.span("backward-compute", number):
                self.engine.backward(loss)
            losses.append(loss.detach())
            self.rank.phase = "optimizer"
            with self._timers.span("optimizer", number):
                self.engine.step()  # updates the weights only after the last micro batch
        times = self._timers.finish_step()
        now, peak = self.memory.now(), self.memory.peak()
        self._loss = MeanLoss(torch.stack(losses).float().mean(), self.rank.place.world_size)
        return StepResult(times, self._loss, now, peak)

    def close(self) -> None:
        """Destroy DeepSpeed's engine; without this, stage 3 occasionally aborts when the process exits."""
        self.engine.destroy()


def micro_batches(config: RunConfig, step: int, rank: int, device: torch.device) -> MicroBatches:
    """Return the network's arguments for each of this rank's micro batches of a step, see make_arguments."""
    share = config.train.global_batch_size // config.parallel.data_parallel_size
    rows, size = slice(rank * share, (rank + 1) * share), config.train.micro_batch_size
    parts = (torch.split(whole[rows].to(device), size) for whole in make_arguments(config, step))
    return list(zip(*parts, strict=True))


def run(rank: Rank) -> None:
    """Train all iterations and print events."""
    if rank.config.train.precision == "fp16":
        refuse_fp16_on_cpu(rank)
    rank.join()
    trainer = ZeroTrainer(rank)
    emit_start(rank, trainer)
    checkpoints = open_checkpoints(rank, lambda: DeepSpeedFormat(trainer.engine, rank.config, rank.place.rank))
    seconds = train_steps(rank, trainer, checkpoints)
    checkpoints.finish()
    rank.emit_end(seconds)
    trainer.close()
    barrier(rank.device)
    leave()


def emit_start(rank: Rank, trainer: ZeroTrainer) -> None:
    """Print the `start` event."""
    layers = [0, rank.config.model.num_layers - 1]
    rank.emit_start("zero", trainer.memory.source, parameters=trainer.num_parameters, stage=0, layers=layers)


def train_steps(rank: Rank, trainer: ZeroTrainer, checkpoints: Checkpoints | NoCheckpoints) -> list[float]:
    """Train the steps that are left, print the event of each, and return their times in seconds."""
    train, seconds = rank.config.train, []
    passes = trainer.load(checkpoints.done + 1)
    recorder = StepRecorder(rank.config, rank.place.rank, rank.device)
    for step in checkpoints.steps():
        with recorder.step(step):
            result = trainer.train(passes)
        result = result._replace(times=charged(result.times, checkpoints.after(step)))
        seconds.append(result.times.step_time_s)
        if step < checkpoints.last:  # overlaps with the reduction of the loss
            passes = trainer.load(step + 1)
        rank.printer.emit(
            "step",
            step=step,
            warmup=rank.is_warmup(step),
            step_time_s=round(result.times.step_time_s, 9),
            samples=train.global_batch_size,
            tokens=train.global_batch_size * rank.config.model.sequence_length,
            loss=result.loss.value(),
            memory_bytes=result.memory_bytes,
            memory_peak_bytes=result.memory_peak_bytes,
            timers_s={name: round(value, 9) for name, value in result.times.timers_s.items()},
        )
    return seconds


def refuse_fp16_on_cpu(rank: Rank) -> None:
    """Raise ConfigError if there is no GPU: DeepSpeed does not support fp16 on a CPU."""
    if not rank.config.device.may_use_gpus or not torch.cuda.is_available():
        message = "DeepSpeed does not support fp16 on a CPU; use bf16 or fp32, or a node with GPUs"
        raise ConfigError([Problem("train.precision", "fp16", message)])


if __name__ == "__main__":
    start("zero", run)
