"""Linear layers cut into shards that may lie on several devices, several of them on one.

Dimension 0 of a weight (out, in) is its outputs: every shard gives a part of them, and the parts are put together.
Dimension -1 is its inputs: every shard takes a part of them, and the results are added up. Source: Shoeybi et al. 2019,
Megatron-LM, section 3, column and row parallel; here what lies between two layers is whole on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional


class Cut(NamedTuple):
    """How the layers of one stage are cut, seen from one of its processes."""

    dim: int
    """0 or -1 of each weight."""
    owners: Sequence[int]
    """Of each shard, the place of its process among those of the stage."""
    me: int
    """This process' place among them."""
    group: dist.ProcessGroup | None
    """The stage's processes in order; None where it is one."""
    is_staged: bool = False
    """The transport carries what is in the memory of the CPU only: some processes have a GPU, others none."""

    @property
    def mine(self) -> list[int]:
        """Shards that lie here."""
        return [shard for shard, owner in enumerate(self.owners) if owner == self.me]

    def gather(self, parts: list[Tensor]) -> Tensor:
        """Put the parts (..., width) of all shards together to (..., shards x width), the same on every process."""
        if self.group is None:
            return torch.cat(parts, dim=-1)
        processes = max(self.owners) + 1
        room = max(self.owners.count(process) for process in range(processes))
        # Collectives want equal sizes of everyone: who has fewer shards sends some of them twice.
        mine = self._for_transport(torch.stack([*parts, *[parts[0]] * (room - len(parts))]))
        everyones = [torch.empty_like(mine) for _ in range(processes)]
        dist.all_gather(everyones, mine, group=self.group)
        taken = [0] * processes
        found = []
        for owner in self.owners:
            found.append(everyones[owner][taken[owner]])
            taken[owner] += 1
        return torch.cat(found, dim=-1).to(parts[0].device)

    def add(self, part: Tensor) -> Tensor:
        """Add up what the processes have, in place."""
        if self.group is not None:
            whole = self._for_transport(part)
            dist.all_reduce(whole, group=self.group)
            if whole is not part:
                part.copy_(whole)
        return part

    def _for_transport(self, tensor: Tensor) -> Tensor:
        return tensor.cpu() if self.is_staged else tensor

    def pieces(self, whole: Tensor) -> list[Tensor]:
        """Return the parts of a tensor's last dimension that belong to the shards here."""
        every = torch.chunk(whole, len(self.owners), dim=-1)
        return [every[shard] for shard in self.mine]


class _OutputsCut(torch.autograd.Function):
    """x @ weight.T with the outputs cut."""

    @staticmethod
    def forward(ctx: Any, cut: Cut, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.cut = cut
        ctx.save_for_backward(x, *weights)
        return cut.gather([functional.linear(x, weight) for weight in weights])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        pieces = ctx.cut.pieces(gradients[0])
        of_x = sum(piece @ weight for piece, weight in zip(pieces, weights, strict=True))
        rows = x.flatten(0, -2)
        return None, ctx.cut.add(of_x), *(piece.flatten(0, -2).t() @ rows for piece in pieces)


class _InputsCut(torch.autograd.Function):
    """x @ weight.T with the inputs cut."""

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
        of_x = ctx.cut.gather([gradient @ weight for weight in weights])
        rows = gradient.flatten(0, -2).t()
        return None, of_x, *(rows @ piece.flatten(0, -2) for piece in ctx.cut.pieces(x))


class ShardedLinear(nn.Module):
    """A linear layer of which this process holds some shards of the weight, and the whole bias."""

    def __init__(self, whole: nn.Linear, cut: Cut) -> None:
        """Keep the shards of `whole` that lie here; the cut dimension is a multiple of the number of shards."""
        super().__init__()
        self._cut = cut
        every = torch.chunk(whole.weight.detach(), len(cut.owners), dim=cut.dim)
        self.shards = nn.ParameterDict({str(shard): nn.Parameter(every[shard].clone()) for shard in cut.mine})
        self.bias = whole.bias

    def forward(self, x: Tensor) -> Tensor:
        kind = _OutputsCut if self._cut.dim == 0 else _InputsCut
        y = cast(Tensor, kind.apply(self._cut, x, *self.shards.values()))  # type: ignore[no-untyped-call]
        return y if self.bias is None else y + self.bias


def cut_linear_layers(network: nn.Module, cut: Cut) -> None:
    """Replace every linear layer of a network by its shards; one that they do not divide stays whole everywhere."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child.weight.shape[cut.dim] % len(cut.owners) == 0:
                setattr(module, name, ShardedLinear(child, cut))
