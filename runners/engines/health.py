"""Rates of the devices of a node and of the links between its ranks, or between nodes. See docs/use/watch.md.

Run `python -m runners.engines.health --config config.json` under torchrun. Each iteration prints one `step` event per
rank with `health/matrix` (FLOP/s of a matrix product), `health/memory` (B/s read and written by a copy), on a GPU
`health/host` (B/s from the memory of the host), and for each pair of ranks, at the lower one, `health/link:A-B` (B/s of
messages in turn) and `health/all-reduce:A-B` (bus bandwidth in B/s, as nccl-tests defines it).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import NamedTuple

import torch
import torch.distributed as dist

from runners.engines.process.memory import memory_meter
from runners.engines.process.process_group import barrier, leave
from runners.engines.process.rank import Rank, start

MAX_RANKS_IN_PAIRS = 8
"""With more ranks only neighbours are measured: the number of pairs grows with the square."""


class Sizes(NamedTuple):
    """What is measured with, so that one sweep takes seconds."""

    matrix: int
    """Rows of a square matrix."""
    dtype: torch.dtype
    copied_bytes: int
    message_bytes: int
    enough_s: float
    """Time for which each rate is measured at least."""


CPU = Sizes(512, torch.float32, 128 * 2**20, 4 * 2**20, 0.1)
GPU = Sizes(8192, torch.bfloat16, 2**30, 256 * 2**20, 0.1)


def pairs(ranks: int) -> list[tuple[int, int]]:
    """Return the pairs of ranks whose link is measured: all of them, of many ranks each with the next one."""
    if ranks <= MAX_RANKS_IN_PAIRS:
        return list(combinations(range(ranks), 2))
    return [(rank, rank + 1) for rank in range(ranks - 1)]


class Probe:
    """Measures the rates of one device."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        self._device, self._sizes = device, sizes

    def rates(self) -> dict[str, float]:
        """Return the rates of the device itself: FLOP/s and B/s."""
        rates = {"matrix": self._matrix(), "memory": self.memory()}
        return rates | ({"host": self.host()} if self._device.type == "cuda" else {})

    def seconds(self, work: Callable[[], object], count: int) -> float:
        """Return the mean time of `count` executions."""
        self.synchronise()
        began = time.perf_counter()
        for _ in range(count):
            work()
        self.synchronise()
        return (time.perf_counter() - began) / count

    def synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _steady(self, work: Callable[[], object]) -> float:
        """Return the time of an execution, from as many as fill `enough_s`."""
        work()
        once = self.seconds(work, 1)
        return self.seconds(work, max(int(self._sizes.enough_s / max(once, 1e-6)), 1))

    def _matrix(self) -> float:
        size = self._sizes.matrix
        a, b = (torch.ones(size, size, dtype=self._sizes.dtype, device=self._device) for _ in range(2))
        out = torch.empty_like(a)
        return 2 * size**3 / self._steady(lambda: torch.mm(a, b, out=out))

    def memory(self) -> float:
        """Return the bytes per second that a copy reads and writes."""
        source = torch.ones(self._sizes.copied_bytes // 4, device=self._device)
        target = torch.empty_like(source)
        return 2 * self._sizes.copied_bytes / self._steady(lambda: target.copy_(source))

    def host(self) -> float:
        """Return the bytes per second from the memory of the host to a GPU."""
        source = torch.ones(self._sizes.message_bytes // 4, pin_memory=True)
        target = torch.empty(len(source), device=self._device)
        return self._sizes.message_bytes / self._steady(lambda: target.copy_(source, non_blocking=True))


class Pair:
    """The link between two ranks; all ranks create all pairs in the same order."""

    def __init__(self, ends: tuple[int, int], rank: int, device: torch.device, sizes: Sizes) -> None:
        self.name = f"{ends[0]}-{ends[1]}"
        self.is_reporting = rank == ends[0]
        self._ends, self._rank, self._bytes = ends, rank, sizes.message_bytes
        self._group = dist.new_group(list(ends))
        self._buffer = torch.zeros(sizes.message_bytes // 4, device=device) if rank in ends else None

    def rates(self, probe: Probe) -> Iterator[tuple[str, float]]:
        """Yield the bandwidths of the link in B/s at its lower rank; the other one takes part."""
        if self._buffer is None:
            return
        # The bus bandwidth of an all-reduce of two ranks is 2 (n - 1) / n = 1 times its size over its time.
        for name, work in (("link", self._message), ("all-reduce", self._sum)):
            work()  # creates connections
            seconds = min(probe.seconds(work, 2) for _ in range(2))
            if self.is_reporting:
                yield f"{name}:{self.name}", self._bytes / seconds

    def _sum(self) -> None:
        assert self._buffer is not None
        dist.all_reduce(self._buffer, group=self._group)

    def _message(self) -> None:
        """Send half of the bytes there and then half of them back."""
        assert self._buffer is not None
        half = self._buffer[: len(self._buffer) // 2]
        first, second = self._ends
        if self._rank == first:
            dist.send(half, second, group=self._group)
            dist.recv(half, second, group=self._group)
        else:
            dist.recv(half, first, group=self._group)
            dist.send(half, first, group=self._group)


def run(rank: Rank) -> None:
    """Measure all rates once per iteration."""
    rank.join()
    sizes = GPU if rank.device.type == "cuda" else CPU
    rank.emit_start("health", memory_meter(rank.device).source, parameters=0)
    ranks, train = rank.place.world_size, rank.config.train
    probe = Probe(rank.device, sizes)
    rank.phase = "data"
    links = [Pair(ends, rank.place.rank, rank.device, sizes) for ends in pairs(ranks)] if ranks > 1 else []
    rank.phase = "forward"
    for step in range(1, train.iterations + 1):
        rates = {}
        for turn in range(rank.place.local_world_size if rank.device.type == "cpu" else 1):
            # CPU processes share the cores and the memory of the machine, so they take turns.
            barrier(rank.device)
            if rank.device.type != "cpu" or rank.place.local_rank == turn:
                rates = probe.rates()
        for link in links:
            barrier(rank.device)
            rates |= dict(link.rates(probe))
        fields = {f"health/{name}": value for name, value in rates.items()}
        rank.printer.emit("step", step=step, warmup=step <= train.warmup_steps, **fields)
    rank.printer.emit("end", iterations=train.iterations)
    barrier(rank.device)
    leave()


if __name__ == "__main__":
    start("health", run)
