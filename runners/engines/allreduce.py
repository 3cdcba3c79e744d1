"""Bandwidth of collective operations over message sizes, as nccl-tests defines it. See docs/understand/engines.md.

Run `python -m runners.engines.allreduce --config config.json` under torchrun. Sizes are those of nccl-tests: the whole
buffer for all-reduce, the gathered or scattered total for all-gather and reduce-scatter, one message for point to
point. Source: nccl-tests doc/PERFORMANCE.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist

from runners.config import CollectivesSection
from runners.engines.process.memory import memory_meter
from runners.engines.process.process_group import barrier, leave
from runners.engines.process.rank import Rank, start
from runners.models import collectives

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TYPE_NAMES = {"fp32": "float", "bf16": "bfloat16", "fp16": "half"}


class Operation(NamedTuple):
    """One operation that moves data between n ranks."""

    test: str
    """Name of the nccl-tests program."""
    redop: str
    """Reduction in nccl-tests' table."""
    is_split: bool
    """The message consists of equal pieces, one per rank."""
    bus_factor: Callable[[int], float]
    """busbw / algbw as a function of n; it makes bandwidths comparable across n."""


def _gather_factor(ranks: int) -> float:
    return (ranks - 1) / ranks


def _unit_factor(_ranks: int) -> float:
    return 1.0


OPERATIONS = {
    "all-reduce": Operation("all_reduce_perf", "sum", False, lambda ranks: 2 * _gather_factor(ranks)),
    "all-gather": Operation("all_gather_perf", "none", True, _gather_factor),
    "reduce-scatter": Operation("reduce_scatter_perf", "sum", True, _gather_factor),
    "point-to-point": Operation("sendrecv_perf", "none", False, _unit_factor),
}


class Timing(NamedTuple):
    """Result of the trials of one size; times are means over the ranks, in seconds."""

    size: int
    """Bytes, as nccl-tests counts them."""
    first_time_s: float
    """The first trial, which also creates connections and buffers."""
    time_s: float
    """Mean of the trials after warm-up."""
    wrong: int
    """Incorrect elements, summed over the ranks."""


def sizes(section: CollectivesSection) -> Iterator[int]:
    """Yield the message sizes in bytes, in ascending order."""
    size = section.min_bytes
    while size <= section.max_bytes:
        yield size
        size *= section.size_factor


class Exchange:
    """One operation on buffers of one size: `run()` executes it, `check()` also verifies the result."""

    def __init__(self, name: str, size: int, rank: int, ranks: int, kind: torch.dtype, device: torch.device) -> None:
        """Allocate buffers for `size` bytes, rounded down to whole elements on each rank (at least one)."""
        self.operation, self.name = OPERATIONS[name], name
        self.rank, self.ranks = rank, ranks
        pieces = ranks if self.operation.is_split else 1
        count = max(size // kind.itemsize // pieces, 1)
        # An all-reduce works in place, on the send buffer.
        self.send_buffer = torch.zeros(count * (ranks if name == "reduce-scatter" else 1), dtype=kind, device=device)
        self.receive_buffer = torch.zeros(count * (ranks if name == "all-gather" else 1), dtype=kind, device=device)
        self.count = count * pieces
        self.size = self.count * kind.itemsize

    def run(self) -> None:
        """Execute the operation once; on a GPU it is only enqueued."""
        if self.name == "all-reduce":
            dist.all_reduce(self.send_buffer)
        elif self.name == "all-gather":
            collectives.gather(self.receive_buffer, self.send_buffer)
        elif self.name == "reduce-scatter":
            collectives.scatter_sum(self.receive_buffer, self.send_buffer)
        else:
            target, source = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
            transfers = [
                dist.P2POp(dist.isend, self.send_buffer, target),
                dist.P2POp(dist.irecv, self.receive_buffer, source),
            ]
            for work in dist.batch_isend_irecv(transfers):
                work.wait()

    def check(self) -> int:
        """Execute the operation once on values that differ by rank; return the number of incorrect elements here."""
        self.send_buffer.fill_(self.rank + 1)
        self.run()
        rank_values = torch.arange(1, self.ranks + 1, dtype=self.send_buffer.dtype, device=self.send_buffer.device)
        received, expected = self.receive_buffer, rank_values.sum().expand_as(self.receive_buffer)
        if self.name == "all-reduce":
            received, expected = self.send_buffer, rank_values.sum().expand_as(self.send_buffer)
        elif self.name == "all-gather":
            expected = rank_values.repeat_interleave(self.send_buffer.numel())
        elif self.name == "point-to-point":
            expected = rank_values[self.rank - 1].expand_as(self.receive_buffer)
        wrong = int((received != expected).sum())
        # Repeated in-place sums would overflow in the trials; the bandwidth does not depend on the values.
        self.send_buffer.zero_()
        return wrong


def time_exchange(exchange: Exchange, trials: int, warmup: int, device: torch.device) -> Timing:
    """Time `trials` executions on all ranks at once, the first `warmup` of them (at least one) individually."""

    def seconds(count: int) -> float:
        barrier(device)
        _synchronise(device)
        began = time.perf_counter()
        for _ in range(count):
            exchange.run()
        _synchronise(device)
        return (time.perf_counter() - began) / count

    # The first execution of a size creates connections and buffers; warm-up trials keep that out of the mean.
    warmup_times = [seconds(1) for _ in range(max(warmup, 1))]
    mean_time = seconds(trials - warmup) if trials > max(warmup, 1) else warmup_times[-1]
    sums = torch.tensor([warmup_times[0], mean_time, float(exchange.check())], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    first, mean, wrong = sums.tolist()
    return Timing(exchange.size, first / exchange.ranks, mean / exchange.ranks, int(wrong))


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table_header(operation: Operation, ranks: int, section: CollectivesSection, trials: int, warmup: int) -> list[str]:
    """Return the header lines of nccl-tests' table, with one group of columns instead of out-of-place and in-place."""
    return [
        f"# Collective test starting: {operation.test}",
        f"# nThread 1 nGpus 1 minBytes {section.min_bytes} maxBytes {section.max_bytes}"
        f" step: {section.size_factor}(factor) warmup iters: {warmup} iters: {trials - warmup} agg iters: 1"
        f" validation: 1 graph: 0",
        f"# Ranks: {ranks}",
        f"#{'size':>12} {'count':>13} {'type':>9} {'redop':>7} {'root':>7} {'time':>9} {'algbw':>8} {'busbw':>8}"
        " #wrong",
        f"#{'(B)':>12} {'(elements)':>13} {'':>9} {'':>7} {'':>7} {'(us)':>9} {'(GB/s)':>8} {'(GB/s)':>8}",
    ]


def table_row(operation: Operation, timing: Timing, count: int, type_name: str, ranks: int) -> str:
    """Return one row of nccl-tests' table: time in microseconds, bandwidths in GB/s of 10^9 bytes."""
    algbw = timing.size / timing.time_s / 1e9
    busbw = algbw * operation.bus_factor(ranks)
    return (
        f" {timing.size:12d} {count:13d} {type_name:>9} {operation.redop:>7} {-1:7d} {timing.time_s * 1e6:9.2f}"
        f" {algbw:8.4f} {busbw:8.4f} {timing.wrong:6d}"
    )


def run(rank: Rank) -> None:
    """Time every operation and size; print the events and nccl-tests' table."""
    rank.join()
    meter = memory_meter(rank.device)
    rank.emit_start("allreduce", meter.source, parameters=0)
    selection = rank.config.collectives.operation
    for name in OPERATIONS if selection == "all" else [selection]:
        _measure(rank, name)
    rank.printer.emit("end", iterations=rank.config.train.iterations)
    barrier(rank.device)
    leave()


def _measure(rank: Rank, name: str) -> None:
    config, ranks, operation = rank.config, rank.place.world_size, OPERATIONS[name]
    trials, warmup, precision = config.train.iterations, config.train.warmup_steps, config.train.precision
    is_rank_0 = rank.place.rank == 0
    lines = table_header(operation, ranks, config.collectives, trials, warmup) if is_rank_0 else []
    for line in lines:
        rank.printer.log(line)
    bus_bandwidths = []
    for size in sizes(config.collectives):
        rank.phase = "data"
        exchange = Exchange(name, size, rank.place.rank, ranks, TYPES[precision], rank.device)
        rank.phase = "forward"
        timing = time_exchange(exchange, trials, warmup, rank.device)
        algbw = timing.size / timing.time_s
        bus_bandwidths.append(algbw * operation.bus_factor(ranks))
        if is_rank_0:
            measures = {
                "time_s": timing.time_s,
                "first_time_s": timing.first_time_s,
                "algbw": algbw,
                "busbw": bus_bandwidths[-1],
            }
            fields = {f"{measure}/{name}": value for measure, value in measures.items()}
            rank.printer.emit("step", step=timing.size, **fields, **{f"wrong/{name}": timing.wrong})
            rank.printer.log(table_row(operation, timing, exchange.count, TYPE_NAMES[precision], ranks))
    if is_rank_0:
        rank.printer.log(f"# Avg bus bandwidth    : {sum(bus_bandwidths) / len(bus_bandwidths) / 1e9:.6g}")
        rank.printer.log(f"# Collective test concluded: {operation.test}")


if __name__ == "__main__":
    start("allreduce", run)
