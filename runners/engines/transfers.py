"""What travels between neighbouring stages: activations forward, gradients backward.

Each direction of each link is a process group of its own with two members. So messages of one direction arrive in the
order in which they were sent and never wait for the other direction. On NCCL, which executes the transfers of one group
one after the other, a receive posted ahead would otherwise block the send that it indirectly waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class Channel(NamedTuple):
    """One direction of a link, seen from one of its ends."""

    peer: int
    group: dist.ProcessGroup

    def send(self, tensor: Tensor) -> dist.Work:
        work = dist.isend(tensor, self.peer, self.group)
        assert work is not None  # None is for ranks outside the group
        return work

    def receive(self, tensor: Tensor) -> dist.Work:
        work = dist.irecv(tensor, self.peer, self.group)
        assert work is not None
        return work


class Channels(NamedTuple):
    """The channels of one stage; None where the pipeline ends."""

    activations_in: Channel | None = None
    activations_out: Channel | None = None
    gradients_in: Channel | None = None
    gradients_out: Channel | None = None


def open_channels(stage: int, num_stages: int, device: torch.device, timeout: timedelta) -> Channels:
    """Connect a stage with its neighbours; every rank of the default process group calls this at the same time.

    The first message of a group makes its connections, and on NCCL both ends wait for each other meanwhile. One
    message through the whole pipeline and one back does that in an order in which nobody waits in a circle.
    """
    groups = [  # a group without a timeout of its own would take torch's default, not that of the run
        (dist.new_group([low, low + 1], timeout=timeout), dist.new_group([low, low + 1], timeout=timeout))
        for low in range(num_stages - 1)
    ]
    before = groups[stage - 1] if stage > 0 else None
    after = groups[stage] if stage < num_stages - 1 else None
    channels = Channels(
        activations_in=Channel(stage - 1, before[0]) if before else None,
        gradients_out=Channel(stage - 1, before[1]) if before else None,
        activations_out=Channel(stage + 1, after[0]) if after else None,
        gradients_in=Channel(stage + 1, after[1]) if after else None,
    )
    message = torch.zeros(1, device=device)
    for source, destination in (
        (channels.activations_in, channels.activations_out),
        (channels.gradients_in, channels.gradients_out),
    ):
        if source:
            source.receive(message).wait()
        if destination:
            destination.send(message).wait()
    return channels


class Inbox:
    """Receives one tensor per micro batch into buffers that are used again, posted as early as a buffer is free."""

    def __init__(self, channel: Channel, order: Sequence[int], buffers: list[Tensor]) -> None:
        self._channel = channel
        self._order = order
        """Micro batches in the order in which the neighbour sends them."""
        self._free = buffers
        self._posted: dict[int, tuple[Tensor, dist.Work]] = {}
        self._taken: dict[int, Tensor] = {}
        self._next = 0

    def begin_step(self) -> None:
        """Post the first receives of a step."""
        self._next = 0
        self._post()

    def take(self, micro_batch: int) -> Tensor:
        """Wait for a micro batch; its buffer is the caller's until released."""
        buffer, work = self._posted.pop(micro_batch)
        work.wait()
        self._taken[micro_batch] = buffer
        return buffer

    def release(self, micro_batch: int) -> None:
        """Give a buffer back, and let the next micro batch into it."""
        self._free.append(self._taken.pop(micro_batch))
        self._post()

    def _post(self) -> None:
        while self._free and self._next < len(self._order):
            buffer = self._free.pop()
            self._posted[self._order[self._next]] = (buffer, self._channel.receive(buffer))
            self._next += 1


class Outbox:
    """Sends without waiting, and keeps each tensor until it has left."""

    def __init__(self, channel: Channel, limit: int) -> None:
        self._channel = channel
        self._limit = limit
        """Tensors under way at most: sending one more waits for the oldest."""
        self._under_way: deque[tuple[dist.Work, Tensor]] = deque()

    def send(self, tensor: Tensor) -> None:
        """Start sending a tensor, which must not be changed any more."""
        if len(self._under_way) == self._limit:
            self._complete_oldest()
        self._under_way.append((self._channel.send(tensor), tensor))

    def finish_step(self) -> None:
        """Wait until everything has left."""
        while self._under_way:
            self._complete_oldest()

    def _complete_oldest(self) -> None:
        work, _tensor = self._under_way.popleft()
        work.wait()
