"""Training on one rank of the megatron engine: its share of a stage, gradient reduction, optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from runners.config import RunConfig
from runners.engines.process.memory import memory_meter
from runners.engines.process.process_group import barrier
from runners.engines.process.timers import StepTimes, Timers
from runners.engines.training.data import make_batch, make_sentence_pairs
from runners.engines.training.executor import Boundary, Executor
from runners.engines.training.flat import FlatParameters
from runners.engines.training.layout import Layout
from runners.engines.training.loss_scale import LossScale
from runners.engines.training.replicas import Replicas
from runners.engines.training.stage import schedule_of
from runners.models.megatron import Inputs, Losses, MegatronStage, Recompute
from runners.models.tensor_parallel import TensorGroup
from runners.schedules import Operation, layers_of_stages

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class StepResult(NamedTuple):
    """Measurements of one step on one rank."""

    times: StepTimes
    losses: dict[str, float]
    """Means over the global batch: "lm", and for a BERT "sop"; empty except on the last stage."""
    memory_bytes: int
    memory_peak_bytes: int
    loss_scale: float
    gradient_norm: float | None
    """Norm before clipping; None if clipping is off or a gradient is not finite."""
    is_skipped: bool
    """The optimizer step was skipped because a gradient was not finite."""


class MegatronRank:
    """One rank in training: create it on every rank, then call train_step(1), train_step(2), ... on all of them.

    The weights after a step do not depend on the layout, except for the summation order of floating point numbers.
    """

    def __init__(self, config: RunConfig, device: torch.device, layout: Layout | None = None) -> None:
        """Initialize the weights of this rank and create its optimizer and receive buffers."""
        self.config, self.device = config, device
        self.layout = layout = layout or Layout()
        self._phase = "model"
        parallel, precision = config.parallel, PRECISIONS[config.train.precision]
        size = parallel.tensor_parallel_size
        ranks = TensorGroup(layout.tensor_rank, size, layout.group("tp"), parallel.sequence_parallel)
        num_ranks = parallel.pipeline_parallel_size
        self.layers = layers_of_stages(config.model.num_layers, num_ranks * parallel.virtual_stages)[
            layout.stage :: num_ranks
        ]
        recompute = cast(Recompute, config.train.recompute)  # the table of engines refuses other values
        self.model = nn.ModuleList(
            MegatronStage(config.model, layers, config.train.seed, device, ranks, recompute) for layers in self.layers
        )
        self.flat = FlatParameters(self.model, precision, has_sequence_parts=parallel.sequence_parallel)
        self.num_parameters = self.flat.weights.numel()
        replicas = parallel.data_parallel_size
        self._replicas = Replicas(self.flat, layout.group("dp"), config.num_micro_batches) if replicas > 1 else None
        self.optimizer = _optimizer(self.flat.weights, config)
        self.loss_scale = LossScale(config.train.loss_scale if config.train.precision == "fp16" else 1.0)
        self._timers = Timers(device)
        self.memory = memory_meter(device)
        sequence = config.model.sequence_length // (size if parallel.sequence_parallel else 1)
        shape = (config.train.micro_batch_size, sequence, config.model.hidden_size)
        self._executor = Executor(
            schedule_of(config),
            layout.stage,
            list(self.model),
            self._forward,
            layout.channels,
            Boundary(shape, precision, parallel.wire_precision),
            self._timers,
            device,
        )
        self._has_ends = layout.stage in (0, num_ranks - 1)
        self._inputs: list[Inputs] = []
        self._losses: list[Losses] = []

    @property
    def phase(self) -> str:
        """Current phase for failure reports: model, data, forward, backward or optimizer."""
        return self._executor.phase if self._phase == "passes" else self._phase

    def train_step(self, step: int) -> StepResult:
        """Train on the batch of a step (counted from 1) and measure it; the clock is that of PipelineStage.

        Raises what torch raises when memory does not suffice, and RuntimeError if another rank has ended or does not
        respond within launcher.collective_timeout_s.
        """
        self._phase = "data"
        self._inputs = self._load(step) if self._has_ends else [Inputs(None)] * self.config.num_micro_batches
        self._losses = []
        self.memory.begin_step()
        barrier(self.device)
        self._timers.begin_step()
        self.flat.begin_step()
        if self._replicas is not None:
            self._replicas.begin_step()
        self._phase = "passes"
        self._executor.run()
        self._executor.finish_sends()
        self._phase = "optimizer"
        self._reduce_gradients()
        scale = self.loss_scale.value
        with self._timers.span("optimizer"):
            norm, is_finite = self._update()
        times = self._timers.finish_step()
        self.loss_scale.update(is_finite=is_finite)
        memory = self.memory.now(), self.memory.peak()
        return StepResult(times, self._mean_losses(), *memory, scale, norm, not is_finite)

    def carried_errors(self) -> dict[str, Tensor]:
        """Return the rounding errors that the next step of this rank adds to its messages."""
        return self._executor.carried_errors()

    def carry_errors(self, errors: Mapping[str, Tensor]) -> None:
        """Continue with rounding errors of an earlier process."""
        self._executor.carry_errors(errors)

    def _load(self, step: int) -> list[Inputs]:
        """Split this replica's part of the global batch into micro batches on the device."""
        train, replicas = self.config.train, self.config.parallel.data_parallel_size
        share = train.global_batch_size // replicas
        begin = self.layout.data_rank * share

        def micro_batches(whole: Tensor) -> tuple[Tensor, ...]:
            return torch.split(whole[begin : begin + share].to(self.device), train.micro_batch_size)

        if self.config.model.kind == "bert":
            pairs = make_sentence_pairs(self.config, step)
            order = (pairs.tokens, pairs.targets, pairs.segments, pairs.positions, pairs.next_sentence)
            return [Inputs(*parts) for parts in zip(*map(micro_batches, order), strict=True)]
        batch = make_batch(self.config, step)
        return [Inputs(*parts) for parts in zip(micro_batches(batch.tokens), micro_batches(batch.targets), strict=True)]

    def _forward(self, operation: Operation, x: Tensor | None) -> Tensor:
        chunk = cast(MegatronStage, self.model[operation.chunk])
        output = chunk(x, self._inputs[operation.micro_batch])
        if isinstance(output, Tensor):
            return output
        sop = None if output.sop is None else output.sop.detach()
        self._losses.append(Losses(output.lm.detach(), sop))
        shares = self.config.num_micro_batches * self.config.parallel.data_parallel_size
        return cast(Tensor, output.total * (self.loss_scale.value / shares))

    def _reduce_gradients(self) -> None:
        """Sum gradients over the replicas, then those of sequence-parallel parameters over the sequence."""
        if self._replicas is not None:
            with self._timers.span("backward-params-all-reduce"):
                self._replicas.finish()
        if self.config.parallel.sequence_parallel:
            with self._timers.span("backward-layernorm-all-reduce"):
                dist.all_reduce(self.flat.in_parts, group=self.layout.group("tp"))

    def _update(self) -> tuple[float | None, bool]:
        """Unscale, clip and step; return the gradient norm and whether all gradients are finite."""
        flat, largest = self.flat, self.config.train.gradient_clipping
        if self.config.train.precision == "fp16":
            with self._timers.span("optimizer-unscale-and-check-inf"):
                flat.gradient.mul_(1.0 / self.loss_scale.value)
                is_finite = self._agree(bool(flat.gradient.isfinite().all()))
            if not is_finite:
                return None, False
        norm = None
        if largest:
            with self._timers.span("optimizer-clip-main-grad"):
                norm = self._gradient_norm()
                if norm > largest:
                    flat.gradient.mul_(largest / (norm + 1e-6))
        self.optimizer.step()
        if flat.is_mixed:
            with self._timers.span("optimizer-copy-main-to-model-params"):
                flat.copy_to_model()
        return norm, True

    def _agree(self, answer: bool) -> bool:
        """Return whether `answer` is true on all ranks."""
        if self.layout.mesh is None:
            return answer
        votes = torch.tensor([float(answer)], device=self.device)
        dist.all_reduce(votes, dist.ReduceOp.MIN)
        return bool(votes.item())

    def _gradient_norm(self) -> float:
        """Return the Euclidean norm over the whole model; replicated parameters count once."""
        flat = self.flat
        square = flat.shared.norm() ** 2
        if self.layout.tensor_rank == 0:
            square = square + flat.in_parts.norm() ** 2 + flat.alike.norm() ** 2
        if self.layout.mesh is not None:
            for dimension in ("tp", "pp"):
                dist.all_reduce(square, group=self.layout.group(dimension))
        return float(square.sqrt())

    def _mean_losses(self) -> dict[str, float]:
        """Average over micro batches and replicas; only the last stage has losses."""
        if not self._losses:
            return {}
        names = ("lm", "sop") if self._losses[0].sop is not None else ("lm",)
        means = torch.stack([torch.stack([getattr(loss, name) for loss in self._losses]).mean() for name in names])
        replicas = self.config.parallel.data_parallel_size
        if replicas > 1:
            dist.all_reduce(means, group=self.layout.group("dp"))
        return dict(zip(names, (means / replicas).tolist(), strict=True))


def _optimizer(weights: nn.Parameter, config: RunConfig) -> torch.optim.Optimizer:
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
    }
    return kinds[config.train.optimizer]([weights], lr=config.train.learning_rate, fused=True)
