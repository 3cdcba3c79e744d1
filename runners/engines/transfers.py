"""What travels between neighbouring ranks of a pipeline: activations forward, gradients backward.

Each direction of each link is a process group of its own with two members. So messages of one direction arrive in the
order in which they were sent and never wait for the other direction. On NCCL, which executes the transfers of one group
one after the other, a receive posted ahead would otherwise block the send that it indirectly waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from runners.engines.wire import Wire


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
    """The channels of one rank; None where the pipeline ends. Those of a ring have no end."""

    activations_in: Channel | None = None
    activations_out: Channel | None = None
    gradients_in: Channel | None = None
    gradients_out: Channel | None = None


def open_channels(
    pipelines: Sequence[Sequence[int]], rank: int, device: torch.device, timeout: timedelta, *, is_ring: bool = False
) -> Channels:
    """Connect a rank with its neighbours; every rank of the default process group calls this at the same time.

    Each pipeline is the ranks of its stages in order; every rank is in one of them. In a ring the last rank's output
    goes to the first one again, as interleaved schedules need it.

    The first message of a group makes its connections, and on NCCL both ends wait for each other meanwhile. One
    message through the whole pipeline and one back does that in an order in which nobody waits in a circle.
    """
    channels = Channels()
    for ranks in pipelines:  # every rank makes every group, in the same order: torch demands it
        links = list(zip(ranks, [*ranks[1:], ranks[0]] if is_ring else ranks[1:], strict=False))
        for low, high in links if len(ranks) > 1 else []:
            # A group without a timeout of its own would take torch's default, not that of the run.
            forward, backward = (dist.new_group(sorted((low, high)), timeout=timeout) for _ in range(2))
            if rank == low:
                channels = channels._replace(
                    activations_out=Channel(high, forward), gradients_in=Channel(high, backward)
                )
            if rank == high:
                channels = channels._replace(activations_in=Channel(low, forward), gradients_out=Channel(low, backward))
    mine = next((ranks for ranks in pipelines if rank in ranks), [rank])
    message = torch.zeros(1, device=device)
    _pass_on(message, channels.activations_in, channels.activations_out, is_origin=rank == mine[0])
    _pass_on(message, channels.gradients_in, channels.gradients_out, is_origin=rank == mine[-1])
    return channels


def _pass_on(message: Tensor, source: Channel | None, destination: Channel | None, *, is_origin: bool) -> None:
    if source and not is_origin:
        source.receive(message).wait()
    if destination:
        destination.send(message).wait()
    if source and is_origin:  # a ring: the message has come round
        source.receive(message).wait()


class Key(NamedTuple):
    """What a transfer belongs to, on the side of whoever receives it."""

    micro_batch: int
    chunk: int = 0


class Inbox:
    """Receives one tensor per key into buffers that are used again, posted as early as a buffer is free."""

    def __init__(self, channel: Channel, order: Sequence[Key], buffers: list[Tensor], wire: Wire) -> None:
        self._channel = channel
        self._order = order
        """Keys in the order in which the neighbour sends them."""
        self._free = buffers
        self._wire = wire
        self._posted: dict[Key, tuple[Tensor, dist.Work]] = {}
        self._taken: dict[Key, Tensor] = {}
        self._next = 0

    def begin_step(self) -> None:
        """Post the first receives of a step."""
        self._next = 0
        self._post()

    def take(self, key: Key) -> Tensor:
        """Wait for a tensor; it is the caller's until released."""
        buffer, work = self._posted.pop(key)
        work.wait()
        if self._wire.is_same:
            self._taken[key] = buffer
            return buffer
        tensor = self._wire.decode(buffer)  # a copy: the buffer is free at once
        self._free.append(buffer)
        self._post()
        return tensor

    def release(self, key: Key) -> None:
        """Give a buffer back, and let the next tensor into it."""
        buffer = self._taken.pop(key, None)
        if buffer is not None:  # one that was converted was free at once
            self._free.append(buffer)
            self._post()

    def _post(self) -> None:
        while self._free and self._next < len(self._order):
            buffer = self._free.pop()
            self._posted[self._order[self._next]] = (buffer, self._channel.receive(buffer))
            self._next += 1


class Outbox:
    """Sends without waiting, and keeps each tensor until it has left.

    On a GPU NCCL has a stream of its own. gloo writes to the socket in the thread that sends, as much as fits: here
    that is a thread beside the one that computes.
    """

    def __init__(self, channel: Channel, limit: int, wire: Wire, device: torch.device) -> None:
        self._channel = channel
        self._limit = limit
        """Tensors under way at most: sending one more waits for the oldest."""
        self._wire = wire
        self._thread = None if device.type == "cuda" else ThreadPoolExecutor(1, thread_name_prefix="outbox")
        self._under_way: deque[tuple[Callable[[], object], Tensor]] = deque()

    def send(self, tensor: Tensor) -> None:
        """Start sending a tensor, which must not be changed any more."""
        if len(self._under_way) == self._limit:
            self._complete_oldest()
        if self._thread is None:
            tensor = self._wire.encode(tensor)
            self._under_way.append((self._channel.send(tensor).wait, tensor))
        else:
            self._under_way.append((self._thread.submit(self._transmit, tensor).result, tensor))

    def finish_step(self) -> None:
        """Wait until everything has left; raises what went wrong on the way."""
        while self._under_way:
            self._complete_oldest()

    def _transmit(self, tensor: Tensor) -> None:
        self._channel.send(self._wire.encode(tensor)).wait()

    def _complete_oldest(self) -> None:
        wait, _tensor = self._under_way.popleft()
        wait()
