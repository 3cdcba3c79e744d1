"""Stages of layers, each split into shards, on the devices of a device mapping. See docs/understand/engines.md.

Run `python -m runners.engines.sharding --config config.json` under torchrun, one process per device of the mapping.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor

from runners.config import ConfigError, Problem, RunConfig
from runners.engines.process.memory import memory_meter
from runners.engines.process.process_group import barrier, join, leave
from runners.engines.process.profiling import StepRecorder
from runners.engines.process.rank import Rank, start
from runners.engines.process.timers import StepTimes, Timers
from runners.engines.training.data import make_arguments
from runners.engines.training.shards import Cut, cut_linear_layers
from runners.models.gpt import GPTStage
from runners.models.megatron import Inputs, Losses, MegatronStage
from runners.schedules import layers_of_stages


def ranks_of_stages(config: RunConfig) -> list[list[int]]:
    """Return the rank of each shard, by stage; rank i is the i-th device of the mapping."""
    devices = config.sharding.devices
    return [[devices.index(device) for device in stage] for stage in config.sharding.grid]


def take_device(rank: Rank) -> torch.device:
    """Return the device of a rank; raise ConfigError if the mapping contains a GPU that this machine does not have.

    On one machine every rank checks the whole mapping, so that all report the same problem. Over several nodes the
    numbers of the mapping count through the nodes, and a rank has the GPU of its place on its node.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if rank.place.local_world_size < rank.place.world_size:
        return _device_on_node(rank, gpus)
    for name in rank.config.sharding.devices:
        if name.startswith("GPU") and int(name[4:]) >= gpus:
            choices = f"GPU:0 to GPU:{gpus - 1}, or CPU:n" if gpus else "CPU:n"
            message = f"device {name} does not exist, this machine has {gpus} GPUs; use {choices}, or another node"
            raise ConfigError([Problem("sharding.device_mapping", name, message)])
    kind, _, number = rank.config.sharding.devices[rank.place.rank].partition(":")
    return torch.device("cuda", int(number)) if kind == "GPU" else torch.device("cpu")


def _device_on_node(rank: Rank, gpus: int) -> torch.device:
    name = rank.config.sharding.devices[rank.place.rank]
    if not name.startswith("GPU"):
        return torch.device("cpu")
    if rank.place.local_world_size > gpus:
        message = (
            f"device {name} needs {rank.place.local_world_size} GPUs on each node, this one has {gpus}; use CPU:n, more"
            " nodes, or nodes with more GPUs"
        )
        raise ConfigError([Problem("sharding.device_mapping", name, message)])
    return torch.device("cuda", rank.place.local_rank)


class ShardedTrainer:
    """One device in training: create it on every rank, then call train_step(1), train_step(2), ... on all of them."""

    def __init__(self, rank: Rank, *, is_staged: bool = False) -> None:
        """Initialize the weights of this rank's shards; collective, because every rank creates every stage's group.

        `is_staged`: transfers between devices go through CPU memory.
        """
        self.rank = rank
        self.transfer_device = torch.device("cpu") if is_staged else rank.device
        """Device of the tensors that are sent and received."""
        config = rank.config
        shards = ranks_of_stages(config)
        self._members = [sorted(set(stage)) for stage in shards]
        layers = layers_of_stages(config.model.num_layers, config.sharding.stage_cnt)
        self.stages: dict[int, GPTStage | MegatronStage] = {}
        for number, (stage, members) in enumerate(zip(shards, self._members, strict=True)):
            group = dist.new_group(members, timeout=rank.timeout) if len(members) > 1 else None
            if rank.place.rank in members:
                owners = [members.index(owner) for owner in stage]
                kind = GPTStage if config.model.kind == "gpt" else MegatronStage
                network = kind(config.model, layers[number], config.train.seed, rank.device)
                here = members.index(rank.place.rank)
                cut_linear_layers(network, Cut(config.sharding.sharding_dim, owners, here, group, is_staged))
                self.stages[number] = network
        parameters = [p for network in self.stages.values() for p in network.parameters()]
        self.num_parameters = sum(parameter.numel() for parameter in parameters)
        kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
            "adam": torch.optim.Adam,
            "adamw": torch.optim.AdamW,
            "sgd": torch.optim.SGD,
        }
        self._optimizer = kinds[config.train.optimizer](parameters, lr=config.train.learning_rate, fused=True)
        self._timers = Timers(rank.device)
        self.memory = memory_meter(rank.device)
        self._sent: list[tuple[dist.Work, Tensor]] = []
        self._passes: dict[tuple[int, int], _Pass] = {}
        self._local: dict[tuple[int, int], Tensor] = {}
        """(stage, micro batch) -> gradient of the stage's output, if the next stage is on this rank too."""

    def train_step(self, step: int) -> tuple[StepTimes, float | None]:
        """Train on the batch of a step (counted from 1); return times, and the mean loss if the last stage is here.

        All forward passes run before all backward passes, both in micro-batch order (GPipe).
        """
        self.rank.phase = "data"
        batch, size = make_arguments(self.rank.config, step), self.rank.config.train.micro_batch_size
        parts = (torch.split(whole.to(self.rank.device), size) for whole in batch)
        inputs = [Inputs(*arguments) for arguments in zip(*parts, strict=True)]
        self.memory.begin_step()
        barrier(self.rank.device)
        self._timers.begin_step()
        self._optimizer.zero_grad()
        self.rank.phase = "forward"
        for number, micro_batch in enumerate(inputs):
            for stage in sorted(self.stages):
                self._forward(stage, number, micro_batch)
        losses = [passed.output.detach() for (stage, _), passed in self._passes.items() if self._is_last(stage)]
        self.rank.phase = "backward"
        for number in range(len(inputs)):
            for stage in sorted(self.stages, reverse=True):
                self._backward(stage, number)
        self.rank.phase = "optimizer"
        with self._timers.span("optimizer"):
            self._optimizer.step()
        for work, _tensor in self._sent:
            work.wait()
        self._sent = []
        return self._timers.finish_step(), float(torch.stack(losses).sum()) if losses else None

    def _is_last(self, stage: int) -> bool:
        return stage == self.rank.config.sharding.stage_cnt - 1

    def _forward(self, stage: int, number: int, inputs: Inputs) -> None:
        assert inputs.tokens is not None
        x = inputs.tokens
        if stage:
            with self._timers.span("forward-recv", number):
                before = self._passes.get((stage - 1, number))
                x = before.output.detach() if before else self._receive(stage - 1, stage, inputs.tokens.shape)
                x.requires_grad_()
        with self._timers.span("forward-compute", number):
            output = self._compute(stage, x, inputs)
            if self._is_last(stage):  # micro batches have equal size, so the mean of their means is the mean
                output = output / self.rank.config.sharding.accum_degree
        self._passes[stage, number] = _Pass(x, output)
        if not self._is_last(stage):
            with self._timers.span("forward-send", number):
                self._send(output.detach(), stage, stage + 1)

    def _compute(self, stage: int, x: Tensor, inputs: Inputs) -> Tensor:
        """Run a micro batch through a stage; return activations, or on the last stage the loss."""
        network = self.stages[stage]
        if isinstance(network, GPTStage):
            return cast(Tensor, network(x, inputs.targets if self._is_last(stage) else None))
        output = cast(Tensor | Losses, network(x if stage else None, inputs))
        return output if isinstance(output, Tensor) else output.total

    def _backward(self, stage: int, number: int) -> None:
        run = self._passes.pop((stage, number))
        gradient = None
        if not self._is_last(stage):
            with self._timers.span("backward-recv", number):
                gradient = self._local.pop((stage, number), None)
                if gradient is None:
                    gradient = self._receive(stage + 1, stage, run.x.shape[:2])
        with self._timers.span("backward-compute", number):
            run.output.backward(gradient)  # type: ignore[no-untyped-call]
        if stage:
            assert run.x.grad is not None
            if stage - 1 in self.stages:
                self._local[stage - 1, number] = run.x.grad
            with self._timers.span("backward-send", number):
                self._send(run.x.grad, stage, stage - 1)

    def _sender(self, source: int, destination: int, receiver: int) -> int:
        """Return the rank of stage `source` that sends to `receiver`; all ranks of a stage hold the same output."""
        others = [rank for rank in self._members[destination] if rank not in self._members[source]]
        return self._members[source][others.index(receiver) % len(self._members[source])]

    def _send(self, tensor: Tensor, source: int, destination: int) -> None:
        for receiver in self._members[destination]:
            if receiver in self._members[source]:
                continue  # it holds the tensor already
            if self._sender(source, destination, receiver) == self.rank.place.rank:
                tensor = tensor.contiguous().to(self.transfer_device)
                work = dist.isend(tensor, receiver)
                assert work is not None
                self._sent.append((work, tensor))

    def _receive(self, source: int, destination: int, shape: torch.Size) -> Tensor:
        buffer = torch.empty(*shape, self.rank.config.model.hidden_size, device=self.transfer_device)
        work = dist.irecv(buffer, self._sender(source, destination, self.rank.place.rank))
        assert work is not None
        work.wait()
        return buffer.to(self.rank.device)


class _Pass(NamedTuple):
    """One micro batch in one stage, between its forward and its backward pass."""

    x: Tensor
    output: Tensor


def run(rank: Rank) -> None:
    """Train all iterations and print events."""
    config, train = rank.config, rank.config.train
    rank.take(take_device(rank))
    torch.set_num_threads(config.launcher.threads_per_rank)
    # NCCL requires a GPU on every rank: if the mapping contains both kinds of devices, all transfers use gloo.
    is_mixed = config.sharding.is_mixed
    rank.backend = join(rank.place, rank.device, rank.timeout, "gloo" if is_mixed else None)
    trainer = ShardedTrainer(rank, is_staged=is_mixed)
    stages = sorted(trainer.stages)
    numbers = {"parameters": trainer.num_parameters, "stage": stages[0], "stages": stages}
    rank.emit_start("sharding", trainer.memory.source, **numbers)
    seconds, fps = [], []
    recorder = StepRecorder(config, rank.place.rank, rank.device)
    for step in range(1, train.iterations + 1):
        with recorder.step(step):
            times, loss = trainer.train_step(step)
        slowest = torch.tensor(times.step_time_s, device=trainer.transfer_device, dtype=torch.float64)
        if rank.place.world_size > 1:
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
        seconds.append(times.step_time_s)
        fps.append(train.global_batch_size / float(slowest))
        rank.printer.emit(
            "step",
            step=step,
            warmup=step <= train.warmup_steps,
            step_time_s=round(times.step_time_s, 9),
            step_fps=round(fps[-1], 6),
            samples=train.global_batch_size,
            tokens=train.global_batch_size * config.model.sequence_length,
            **({} if loss is None else {"loss": loss}),
            memory_bytes=trainer.memory.now(),
            memory_peak_bytes=trainer.memory.peak(),
            timers_s={name: round(value, 9) for name, value in times.timers_s.items()},
        )
    average = fmean(fps[train.warmup_steps :])
    if rank.place.rank == 0:
        rank.printer.log(
            f"avg_step_fps = {average:.6g} (sequences per second: mean of {train.global_batch_size} / step time over"
            f" {len(fps) - train.warmup_steps} steps after {train.warmup_steps} of warm-up, slowest device of each)"
        )
    rank.emit_end(seconds, avg_step_fps=round(average, 6))
    barrier(rank.device)
    leave()


if __name__ == "__main__":
    start("sharding", run)
