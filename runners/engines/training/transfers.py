"""Transfers between neighbouring ranks of a pipeline: activations forward, gradients backward.

Each direction of each link is a separate process group with two members. Messages of one direction therefore arrive in
the order in which they were sent and never wait for the other direction. NCCL executes the transfers of a group in
order, so in a shared group a receive posted ahead would block the send that it indirectly waits for.
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

from runners.engines.training.transfer_precision import Wire


class Channel(NamedTuple):
    """One end of one direction of a link."""

    peer: int
    group: dist.ProcessGroup

    def send(self, tensor: Tensor) -> dist.Work:
        work = dist.isend(tensor, self.peer, self.group)
        assert work is not None  # None only on ranks outside the group
        return work

    def receive(self, tensor: Tensor) -> dist.Work:
        work = dist.irecv(tensor, self.peer, self.group)
        assert work is not None
        return work


class Channels(NamedTuple):
    """The channels of one rank; None at the ends of a pipeline that is not a ring."""

    activations_in: Channel | None = None
    activations_out: Channel | None = None
    gradients_in: Channel | None = None
    gradients_out: Channel | None = None


def open_channels(
    pipelines: Sequence[Sequence[int]], rank: int, device: torch.device, timeout: timedelta, *, is_ring: bool = False
) -> Channels:
    """Connect a rank with its neighbours; collective over all ranks of the default process group.

    Each element of `pipelines` lists the ranks of its stages in order; every rank is in exactly one of them. In a ring,
    which interleaved schedules need, the last rank also sends activations to the first.

    The first message of a group creates its connections, and on NCCL both ends block until then. One message forward
    through the pipeline and one backward connect all groups in an order that cannot deadlock.
    """
    channels = Channels()
    for ranks in pipelines:  # torch requires every rank to create every group, in the same order
        links = list(zip(ranks, [*ranks[1:], ranks[0]] if is_ring else ranks[1:], strict=False))
        for low, high in links if len(ranks) > 1 else []:
            # Without an explicit timeout a group would have torch's default instead of the run's.
            forward, backward = (dist.new_group(sorted((low, high)), timeout=timeout) for _ in range(2))
            if rank == low:
                channels = channels._replace(
                    activations_out=Channel(high, forward), gradients_in=Channel(high, backward)
                )
            if rank == high:
                channels = channels._replace(activations_in=Channel(low, forward), gradients_out=Channel(low, backward))
    own_pipeline = next((ranks for ranks in pipelines if rank in ranks), [rank])
    message = torch.zeros(1, device=device)
    _pass_on(message, channels.activations_in, channels.activations_out, is_origin=rank == own_pipeline[0])
    _pass_on(message, channels.gradients_in, channels.gradients_out, is_origin=rank == own_pipeline[-1])
    return channels


def _pass_on(message: Tensor, source: Channel | None, destination: Channel | None, *, is_origin: bool) -> None:
    if source and not is_origin:
        source.receive(message).wait()
    if destination:
        destination.send(message).wait()
    if source and is_origin:  # in a ring the message returns to its origin
        source.receive(message).wait()


class Key(NamedTuple):
    """Identifies a transfer by the receiver's micro batch and chunk."""

    micro_batch: int
    chunk: int = 0


class Inbox:
    """Receives one tensor per key into reused buffers; a receive is posted as soon as a buffer is free."""

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
        """Wait for a tensor and return it; the caller may use it until release()."""
        buffer, work = self._posted.pop(key)
        work.wait()
        if self._wire.is_same:
            self._taken[key] = buffer
            return buffer
        tensor = self._wire.decode(buffer)  # a copy, so the buffer is free at once
        self._free.append(buffer)
        self._post()
        return tensor

    def release(self, key: Key) -> None:
        """Return a tensor's buffer and post the next receive into it."""
        buffer = self._taken.pop(key, None)
        if buffer is not None:  # None for a converted tensor, whose buffer was free at once
            self._free.append(buffer)
            self._post()

    def _post(self) -> None:
        while self._free and self._next < len(self._order):
            buffer = self._free.pop()
            self._posted[self._order[self._next]] = (buffer, self._channel.receive(buffer))
            self._next += 1


class Outbox:
    """Sends asynchronously and keeps a reference to each tensor until it has been sent.

    On a GPU, NCCL sends in its own stream. gloo writes to the socket in the calling thread as far as the socket
    accepts data, so on a CPU a separate thread sends.
    """

    def __init__(self, channel: Channel, limit: int, wire: Wire, device: torch.device) -> None:
        self._channel = channel
        self._limit = limit
        """Maximum number of unfinished sends; a further send waits for the oldest."""
        self.wire = wire
        self._thread = None if device.type == "cuda" else ThreadPoolExecutor(1, thread_name_prefix="outbox")
        self._pending: deque[tuple[Callable[[], object], Tensor]] = deque()

    def send(self, tensor: Tensor) -> None:
        """Start to send a tensor; the caller must not modify it afterwards."""
        if len(self._pending) == self._limit:
            self._complete_oldest()
        if self._thread is None:
            tensor = self.wire.encode(tensor)
            self._pending.append((self._channel.send(tensor).wait, tensor))
        else:
            self._pending.append((self._thread.submit(self._transmit, tensor).result, tensor))

    def finish_step(self) -> None:
        """Wait until all sends have completed; raise the exception of a failed one."""
        while self._pending:
            self._complete_oldest()

    def _transmit(self, tensor: Tensor) -> None:
        self._channel.send(self.wire.encode(tensor)).wait()

    def _complete_oldest(self) -> None:
        wait, _tensor = self._pending.popleft()
        wait()
