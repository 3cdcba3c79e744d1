"""Communication between tensor parallel ranks, in forward and backward passes.

Source: Shoeybi et al. 2019, Megatron-LM, section 3 (operators f and g); Korthikanti et al. 2022, section 4.2.2
(sequence parallel: g becomes a reduce-scatter along the sequence, f an all-gather).
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from runners.models import collectives

SEQUENCE = 1
"""Dimension of the sequence in (batch, sequence, hidden)."""


class TensorGroup(NamedTuple):
    """A tensor parallel group as seen by one of its ranks; by default a single rank."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    sequence_parallel: bool = False
    """Between attention and MLP, each rank keeps only its part of the sequence."""

    def part(self, length: int) -> slice:
        """Return this rank's slice of a dimension of size `length`, which must be a multiple of the group's size."""
        share = length // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the ranks, in place if it is contiguous."""
        tensor = tensor.contiguous()
        dist.all_reduce(tensor, group=self.group)
        return tensor

    def gather(self, part: Tensor) -> Tensor:
        """Concatenate the parts of the sequence: (batch, s/t, hidden) -> (batch, s, hidden)."""
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part, group=self.group)
        return torch.cat(parts, SEQUENCE)

    def scatter_sum(self, whole: Tensor) -> Tensor:
        """Sum over the ranks and keep this rank's part of the sequence: (batch, s, hidden) -> (batch, s/t, hidden)."""
        rows = whole.movedim(SEQUENCE, 0).contiguous()
        part = rows.new_empty((rows.shape[0] // self.size, *rows.shape[1:]))
        collectives.scatter_sum(part, rows, group=self.group)
        return part.movedim(0, SEQUENCE)


class _Enter(torch.autograd.Function):
    """Operator f: a replicated tensor or a part of the sequence -> the complete input of a column parallel layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: TensorGroup) -> Tensor:
        ctx.ranks = ranks
        return ranks.gather(x) if ranks.sequence_parallel else x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ranks: TensorGroup = ctx.ranks
        if ranks.sequence_parallel:
            return ranks.scatter_sum(gradients[0]), None
        return ranks.sum(gradients[0].clone()), None


class _Leave(torch.autograd.Function):
    """Operator g: each rank's share of a sum -> the sum, or this rank's part of the sequence of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: TensorGroup) -> Tensor:
        ctx.ranks = ranks
        return ranks.scatter_sum(x) if ranks.sequence_parallel else ranks.sum(x.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ranks: TensorGroup = ctx.ranks
        return ranks.gather(gradients[0]) if ranks.sequence_parallel else gradients[0], None


class _Unite(torch.autograd.Function):
    """This rank's part of the sequence -> the complete sequence, for computations that all ranks replicate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: TensorGroup) -> Tensor:
        ctx.ranks = ranks
        return ranks.gather(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][:, ctx.ranks.part(gradients[0].shape[SEQUENCE])].contiguous(), None


def enter(x: Tensor, ranks: TensorGroup) -> Tensor:
    """Apply f before a column parallel layer, which is split along its output."""
    return x if ranks.size == 1 else cast(Tensor, _Enter.apply(x, ranks))  # type: ignore[no-untyped-call]


def leave(x: Tensor, ranks: TensorGroup) -> Tensor:
    """Apply g after a row parallel layer, which is split along its input."""
    return x if ranks.size == 1 else cast(Tensor, _Leave.apply(x, ranks))  # type: ignore[no-untyped-call]


def unite(x: Tensor, ranks: TensorGroup) -> Tensor:
    """Gather the complete sequence if it is split."""
    return cast(Tensor, _Unite.apply(x, ranks)) if ranks.sequence_parallel else x  # type: ignore[no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    """Cross entropy of logits whose vocabulary is split over the ranks; only a few numbers per row are communicated."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, ranks: TensorGroup) -> Tensor:
        largest = logits.amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=ranks.group)
        shifted = logits - largest[:, None]
        share = logits.shape[-1]
        local = targets - ranks.rank * share
        is_mine = (local >= 0) & (local < share)
        local = local.clamp(0, share - 1)
        chosen = shifted.gather(1, local[:, None]).squeeze(1) * is_mine
        exponentials = shifted.exp_()
        both = torch.stack([exponentials.sum(-1), chosen])
        dist.all_reduce(both, group=ranks.group)
        probabilities = exponentials.div_(both[0][:, None])
        ctx.save_for_backward(probabilities, local, is_mine)
        return (both[0].log() - both[1]).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        probabilities, local, is_mine = ctx.saved_tensors
        gradient = probabilities.clone()
        gradient[torch.arange(len(local), device=local.device), local] -= is_mine.to(gradient.dtype)
        return gradient * (gradients[0] / len(local)), None, None


def cross_entropy(logits: Tensor, targets: Tensor, ranks: TensorGroup) -> Tensor:
    """Return the mean cross entropy in fp32 of logits (rows, V/t) and targets (rows,), the same on every rank."""
    logits = logits.float()
    if ranks.size == 1:
        return functional.cross_entropy(logits, targets)
    return cast(Tensor, _CrossEntropy.apply(logits, targets, ranks))  # type: ignore[no-untyped-call]
