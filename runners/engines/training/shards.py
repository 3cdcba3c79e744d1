"""Linear layers split into shards over several devices, with one or more shards per device.

A split along dimension 0 of a weight (out, in) divides its outputs: each shard computes a part, and the parts are
concatenated. A split along dimension -1 divides its inputs: each shard reads a part, and the results are summed.
Source: Shoeybi et al. 2019, Megatron-LM, section 3 (column and row parallel); unlike there, the tensors between two
layers are complete on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional


class Cut(NamedTuple):
    """Split of the layers of one stage, as seen by one of its processes."""

    dim: int
    """Dimension of each weight: 0 (outputs) or -1 (inputs)."""
    owners: Sequence[int]
    """Owner of each shard, as an index into the stage's processes."""
    me: int
    """Index of this process."""
    group: dist.ProcessGroup | None
    """The stage's processes in order; None for a single process."""
    is_staged: bool = False
    """Transfers go through CPU memory, because some processes have a GPU and others do not."""

    @property
    def mine(self) -> list[int]:
        return [shard for shard, owner in enumerate(self.owners) if owner == self.me]

    def gather(self, parts: list[Tensor]) -> Tensor:
        """Concatenate the parts (..., width) of all shards to (..., shards x width), on every process."""
        if self.group is None:
            return torch.cat(parts, dim=-1)
        processes = max(self.owners) + 1
        count = max(self.owners.count(process) for process in range(processes))
        # Collectives require equal sizes on all processes: a process with fewer shards pads with its first one.
        padded = self._for_transport(torch.stack([*parts, *[parts[0]] * (count - len(parts))]))
        gathered = [torch.empty_like(padded) for _ in range(processes)]
        dist.all_gather(gathered, padded, group=self.group)
        next_shard = [0] * processes
        ordered = []
        for owner in self.owners:
            ordered.append(gathered[owner][next_shard[owner]])
            next_shard[owner] += 1
        return torch.cat(ordered, dim=-1).to(parts[0].device)

    def add(self, part: Tensor) -> Tensor:
        """Sum a tensor over the processes, in place."""
        if self.group is not None:
            whole = self._for_transport(part)
            dist.all_reduce(whole, group=self.group)
            if whole is not part:
                part.copy_(whole)
        return part

    def _for_transport(self, tensor: Tensor) -> Tensor:
        return tensor.cpu() if self.is_staged else tensor

    def pieces(self, whole: Tensor) -> list[Tensor]:
        """Return the parts of a tensor's last dimension that belong to this process' shards."""
        chunks = torch.chunk(whole, len(self.owners), dim=-1)
        return [chunks[shard] for shard in self.mine]


class _OutputsCut(torch.autograd.Function):
    """x @ weight.T, split along the outputs."""

    @staticmethod
    def forward(ctx: Any, cut: Cut, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.cut = cut
        ctx.save_for_backward(x, *weights)
        return cut.gather([functional.linear(x, weight) for weight in weights])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        pieces = ctx.cut.pieces(gradients[0])
        x_gradient = sum(piece @ weight for piece, weight in zip(pieces, weights, strict=True))
        rows = x.flatten(0, -2)
        return None, ctx.cut.add(x_gradient), *(piece.flatten(0, -2).t() @ rows for piece in pieces)


class _InputsCut(torch.autograd.Function):
    """x @ weight.T, split along the inputs."""

    @staticmethod
    def forward(ctx: Any, cut: Cut, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.cut = cut
        ctx.save_for_backward(x, *weights)
        parts = [functional.linear(piece, weight) for piece, weight in zip(cut.pieces(x), weights, strict=True)]
        return cut.add(cast(Tensor, sum(parts)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        x, *weights = ctx.saved_tensors
        x_gradient = ctx.cut.gather([gradient @ weight for weight in weights])
        rows = gradient.flatten(0, -2).t()
        return None, x_gradient, *(rows @ piece.flatten(0, -2) for piece in ctx.cut.pieces(x))


class ShardedLinear(nn.Module):
    """A linear layer of which this process holds some shards of the weight and the complete bias."""

    def __init__(self, whole: nn.Linear, cut: Cut) -> None:
        """Copy this process' shards of `whole`; the number of shards must divide the split dimension."""
        super().__init__()
        self._cut = cut
        chunks = torch.chunk(whole.weight.detach(), len(cut.owners), dim=cut.dim)
        self.shards = nn.ParameterDict({str(shard): nn.Parameter(chunks[shard].clone()) for shard in cut.mine})
        self.bias = whole.bias

    def forward(self, x: Tensor) -> Tensor:
        kind = _OutputsCut if self._cut.dim == 0 else _InputsCut
        y = cast(Tensor, kind.apply(self._cut, x, *self.shards.values()))  # type: ignore[no-untyped-call]
        return y if self.bias is None else y + self.bias


def cut_linear_layers(network: nn.Module, cut: Cut) -> None:
    """Replace the linear layers of a network by shards; a layer not divisible by their number stays complete."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child.weight.shape[cut.dim] % len(cut.owners) == 0:
                setattr(module, name, ShardedLinear(child, cut))
