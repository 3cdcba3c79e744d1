"""What the ranks of a run decide and do together about checkpoints, over connections of their own on the CPU."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist

SAVE_TIMEOUT = timedelta(hours=1)
"""Time for which a rank waits until the others have written their parts, while the training goes on."""

Value = TypeVar("Value")


class Decision(NamedTuple):
    """What all ranks do after a step, because at least one of them asks for it."""

    stops: bool = False
    saves: bool = False


class Together:
    """The ranks of a run; a single rank needs no connections."""

    def __init__(self, rank: int, world_size: int, timeout: timedelta) -> None:
        """Connect the ranks; collective over all of them."""
        self.rank, self.world_size = rank, world_size
        self._votes = torch.zeros(2)
        self.saving: dist.ProcessGroup | None = None
        """Used by the thread that saves, and by the main thread while nothing is saved."""
        self._deciding: dist.ProcessGroup | None = None
        if world_size > 1:
            self.saving = dist.new_group(backend="gloo", timeout=max(timeout, SAVE_TIMEOUT))
            # Two threads must not use one group. On CPUs the group of the training is only used by the main thread.
            if dist.get_backend() != "gloo":
                self._deciding = dist.new_group(backend="gloo", timeout=timeout)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def decide(self, *, stops: bool, saves: bool) -> Decision:
        """Return what at least one rank asks for: one all-reduce of two numbers."""
        if self.world_size == 1:
            return Decision(stops, saves)
        self._votes[0], self._votes[1] = float(stops), float(saves)
        dist.all_reduce(self._votes, dist.ReduceOp.MAX, group=self._deciding)
        stop, save = self._votes.tolist()
        return Decision(stop > 0, save > 0)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.saving)
        return values

    def from_first(self, value: Value) -> Value:
        """Return the value of rank 0 on every rank."""
        if self.world_size == 1:
            return value
        values: list[Any] = [value]
        dist.broadcast_object_list(values, src=0, group=self.saving)
        return cast(Value, values[0])
