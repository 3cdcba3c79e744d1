"""Compare two implementations of a step on several real ranks, alternating so that a busy machine slows down both."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist

from runners.engines.process_group import Place, join, leave

TIMEOUT = timedelta(seconds=300)
TINY = {"num_layers": 4, "hidden_size": 32, "num_attention_heads": 2, "sequence_length": 16, "vocab_size": 64}
"""A tiny model, to check that a benchmark runs."""
Step = Callable[[], object]


class Times(NamedTuple):
    """Median step times over the rounds in seconds, each of the slowest rank."""

    ours: float
    theirs: float
    ratio: float
    """Median over the rounds of theirs / ours."""


def side_by_side(
    prepare: Callable[[int, int], Sequence[tuple[Step, Step]]], world_size: int, rounds: int
) -> list[Times]:
    """Measure the pairs of steps that `prepare(rank, world_size)` returns, in `world_size` processes.

    `prepare` must be importable by the processes. Raises RuntimeError if a rank fails.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="parlab-ranks-") as directory:
        ranks = [
            context.Process(target=_rank, args=(rank, world_size, prepare, rounds, directory))
            for rank in range(world_size)
        ]
        try:
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
        finally:
            for process in ranks:
                if process.is_alive():
                    process.kill()
                process.join()
        if any(process.exitcode for process in ranks):
            raise RuntimeError("a rank of the benchmark failed; its traceback is above")
        result: list[Times] = torch.load(Path(directory) / "times.pt", weights_only=False)
    return result


def _rank(
    rank: int,
    world_size: int,
    prepare: Callable[[int, int], Sequence[tuple[Step, Step]]],
    rounds: int,
    directory: str,
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    join(Place(rank, world_size, rank, world_size, f"file://{directory}/meeting"), torch.device("cpu"), TIMEOUT)
    times = [_time(ours, theirs, rounds) for ours, theirs in prepare(rank, world_size)]
    if rank == 0:
        torch.save(times, Path(directory) / "times.pt")
    dist.barrier()
    leave()


def _time(ours: Step, theirs: Step, rounds: int) -> Times:
    _seconds(ours)
    _seconds(theirs)
    pairs = []
    for turn in range(rounds):
        if turn % 2:
            second, first = _seconds(theirs), _seconds(ours)
            pairs.append((first, second))
        else:
            pairs.append((_seconds(ours), _seconds(theirs)))
    return Times(median(a for a, _ in pairs), median(b for _, b in pairs), median(b / a for a, b in pairs))


def _seconds(step: Step) -> float:
    """Return the time of one step in seconds, of the slowest rank."""
    dist.barrier()
    began = time.perf_counter()
    step()
    seconds = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)
