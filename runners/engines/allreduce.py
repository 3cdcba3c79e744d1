"""Bandwidth of collective operations over message sizes, as nccl-tests define it. See docs/engines-more.md.

`python -m runners.engines.allreduce --config config.json` under torchrun. Sizes are those of nccl-tests: the whole
buffer for all-reduce, what all ranks gather or scatter together for all-gather and reduce-scatter, one message for
point to point. Source: nccl-tests doc/PERFORMANCE.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist

from runners.config import CollectivesSection
from runners.engines.memory import memory_meter
from runners.engines.process_group import barrier, leave
from runners.engines.rank import Rank, start
from runners.models import collectives

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TYPE_NAMES = {"fp32": "float", "bf16": "bfloat16", "fp16": "half"}


class Operation(NamedTuple):
    """One way of moving data between n ranks."""

    test: str
    """What nccl-tests call it."""
    redop: str
    is_split: bool
    """The message is a whole number of equal pieces, one for each rank."""
    bus_factor: Callable[[int], float]
    """n -> busbw / algbw: what crosses the slowest link, whatever n."""


def _gathered(ranks: int) -> float:
    return (ranks - 1) / ranks


def _whole(_ranks: int) -> float:
    return 1.0


OPERATIONS = {
    "all-reduce": Operation("all_reduce_perf", "sum", False, lambda ranks: 2 * _gathered(ranks)),
    "all-gather": Operation("all_gather_perf", "none", True, _gathered),
    "reduce-scatter": Operation("reduce_scatter_perf", "sum", True, _gathered),
    "point-to-point": Operation("sendrecv_perf", "none", False, _whole),
}


class Timed(NamedTuple):
    """What the trials of one size gave; times are means over the ranks, in seconds."""

    size: int
    """Bytes, as nccl-tests count them."""
    first_time_s: float
    time_s: float
    """Mean of the trials that are not apart."""
    wrong: int
    """Numbers that arrived wrong on any rank."""


def sizes(section: CollectivesSection) -> Iterator[int]:
    """Yield the message sizes in bytes, rising."""
    size = section.min_bytes
    while size <= section.max_bytes:
        yield size
        size *= section.size_factor


class Exchange:
    """One operation on buffers of one size: `run` it any number of times, or `check` it once."""

    def __init__(self, name: str, size: int, rank: int, ranks: int, kind: torch.dtype, device: torch.device) -> None:
        """Allocate what `size` bytes need, rounded down to a whole number of elements on each rank."""
        self.operation, self.name = OPERATIONS[name], name
        self.rank, self.ranks = rank, ranks
        pieces = ranks if self.operation.is_split else 1
        count = max(size // kind.itemsize // pieces, 1)
        # What is sent, and what arrives; an all-reduce works in place.
        self.given = torch.zeros(count * (ranks if name == "reduce-scatter" else 1), dtype=kind, device=device)
        self.taken = torch.zeros(count * (ranks if name == "all-gather" else 1), dtype=kind, device=device)
        self.count = count * pieces
        self.size = self.count * kind.itemsize

    def run(self) -> None:
        """Do it once; on a GPU it is only queued."""
        if self.name == "all-reduce":
            dist.all_reduce(self.given)
        elif self.name == "all-gather":
            collectives.gather(self.taken, self.given)
        elif self.name == "reduce-scatter":
            collectives.scatter_sum(self.taken, self.given)
        else:
            to, source = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
            both = [dist.P2POp(dist.isend, self.given, to), dist.P2POp(dist.irecv, self.taken, source)]
            for work in dist.batch_isend_irecv(both):
                work.wait()

    def check(self) -> int:
        """Do it once with numbers that tell the ranks apart; returns how many arrived wrong here."""
        self.given.fill_(self.rank + 1)
        self.run()
        everyone = torch.arange(1, self.ranks + 1, dtype=self.given.dtype, device=self.given.device)
        arrived, expected = self.taken, everyone.sum().expand_as(self.taken)
        if self.name == "all-reduce":
            arrived, expected = self.given, everyone.sum().expand_as(self.given)
        elif self.name == "all-gather":
            expected = everyone.repeat_interleave(self.given.numel())
        elif self.name == "point-to-point":
            expected = everyone[self.rank - 1].expand_as(self.taken)
        wrong = int((arrived != expected).sum())
        # Sums of sums would overflow in the trials; how fast numbers travel does not depend on them.
        self.given.zero_()
        return wrong


def time_exchange(exchange: Exchange, trials: int, apart: int, device: torch.device) -> Timed:
    """Time `trials` of an exchange on all ranks at once, the first `apart` of them (at least one) singly."""

    def seconds(count: int) -> float:
        barrier(device)
        _synchronise(device)
        began = time.perf_counter()
        for _ in range(count):
            exchange.run()
        _synchronise(device)
        return (time.perf_counter() - began) / count

    # The very first use of a size makes connections and buffers: it is what the trials apart are there to show.
    singly = [seconds(1) for _ in range(max(apart, 1))]
    together = seconds(trials - apart) if trials > max(apart, 1) else singly[-1]
    sums = torch.tensor([singly[0], together, float(exchange.check())], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    first, mean, wrong = sums.tolist()
    return Timed(exchange.size, first / exchange.ranks, mean / exchange.ranks, int(wrong))


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table_header(operation: Operation, ranks: int, section: CollectivesSection, trials: int, apart: int) -> list[str]:
    """Return the lines before the rows, as nccl-tests print them, for one way (in place or not) instead of two."""
    return [
        f"# Collective test starting: {operation.test}",
        f"# nThread 1 nGpus 1 minBytes {section.min_bytes} maxBytes {section.max_bytes}"
        f" step: {section.size_factor}(factor) warmup iters: {apart} iters: {trials - apart} agg iters: 1"
        f" validation: 1 graph: 0",
        f"# Ranks: {ranks}",
        f"#{'size':>12} {'count':>13} {'type':>9} {'redop':>7} {'root':>7} {'time':>9} {'algbw':>8} {'busbw':>8}"
        " #wrong",
        f"#{'(B)':>12} {'(elements)':>13} {'':>9} {'':>7} {'':>7} {'(us)':>9} {'(GB/s)':>8} {'(GB/s)':>8}",
    ]


def table_row(operation: Operation, timed: Timed, count: int, type_name: str, ranks: int) -> str:
    """Return one row of nccl-tests' table."""
    algbw = timed.size / timed.time_s / 1e9
    busbw = algbw * operation.bus_factor(ranks)
    return (
        f" {timed.size:12d} {count:13d} {type_name:>9} {operation.redop:>7} {-1:7d} {timed.time_s * 1e6:9.2f}"
        f" {algbw:8.4f} {busbw:8.4f} {timed.wrong:6d}"
    )


def run(rank: Rank) -> None:
    """Time every operation and size, and print events and the table."""
    rank.join()
    meter = memory_meter(rank.device)
    rank.emit_start("allreduce", meter.source, parameters=0)
    chosen = rank.config.collectives.operation
    for name in OPERATIONS if chosen == "all" else [chosen]:
        _measure(rank, name)
    rank.printer.emit("end", iterations=rank.config.train.iterations)
    barrier(rank.device)
    leave()


def _measure(rank: Rank, name: str) -> None:
    config, ranks, operation = rank.config, rank.place.world_size, OPERATIONS[name]
    trials, apart, precision = config.train.iterations, config.train.warmup_steps, config.train.precision
    is_speaker = rank.place.rank == 0
    lines = table_header(operation, ranks, config.collectives, trials, apart) if is_speaker else []
    for line in lines:
        rank.printer.log(line)
    buses = []
    for size in sizes(config.collectives):
        rank.phase = "data"
        exchange = Exchange(name, size, rank.place.rank, ranks, TYPES[precision], rank.device)
        rank.phase = "forward"
        timed = time_exchange(exchange, trials, apart, rank.device)
        algbw = timed.size / timed.time_s
        buses.append(algbw * operation.bus_factor(ranks))
        if is_speaker:
            measured = {"time_s": timed.time_s, "first_time_s": timed.first_time_s, "algbw": algbw, "busbw": buses[-1]}
            fields = {f"{what}/{name}": value for what, value in measured.items()}
            rank.printer.emit("step", step=timed.size, **fields, **{f"wrong/{name}": timed.wrong})
            rank.printer.log(table_row(operation, timed, exchange.count, TYPE_NAMES[precision], ranks))
    if is_speaker:
        rank.printer.log(f"# Avg bus bandwidth    : {sum(buses) / len(buses) / 1e9:.6g}")
        rank.printer.log(f"# Collective test concluded: {operation.test}")


if __name__ == "__main__":
    start("allreduce", run)
