"""Compare two implementations of a step on several real ranks, alternating so that a busy machine slows down both."""

import multiprocessing
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from runners.engines.process.process_group import Place, join, leave

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

    @property
    def text(self) -> str:
        """Return the other one's time, ours and the ratio."""
        return f"{1000 * self.theirs:.0f} ms, parlab {1000 * self.ours:.0f} ms, {self.ratio:.3f} x"


def side_by_side(
    prepare: Callable[[int, int], Sequence[tuple[Step, Step]]], world_size: int, rounds: int
) -> list[Times]:
    """Measure the pairs of steps that `prepare(rank, world_size)` returns, in `world_size` processes."""
    times: list[Times] = on_ranks(partial(_pairs, prepare, rounds), world_size)
    return times


def _pairs(
    prepare: Callable[[int, int], Sequence[tuple[Step, Step]]], rounds: int, rank: int, world_size: int
) -> list[Times]:
    return [_time(ours, theirs, rounds) for ours, theirs in prepare(rank, world_size)]


def on_ranks(work: Callable[[int, int], object], world_size: int) -> Any:
    """Run `work(rank, world_size)` in processes with one process group; return what the first rank returns.

    `work` must be importable by the processes. Raises RuntimeError if a rank fails.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="parlab-ranks-") as directory:
        ranks = [context.Process(target=_rank, args=(rank, world_size, work, directory)) for rank in range(world_size)]
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
        return torch.load(Path(directory) / "result.pt", weights_only=False)


def _rank(rank: int, world_size: int, work: Callable[[int, int], object], directory: str) -> None:
    warnings.simplefilter("ignore", FutureWarning)  # torch's, of functions that DeepSpeed calls in every step
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    join(Place(rank, world_size, rank, world_size, f"file://{directory}/meeting"), torch.device("cpu"), TIMEOUT)
    result = work(rank, world_size)
    if rank == 0:
        torch.save(result, Path(directory) / "result.pt")
    dist.barrier()
    leave()


def _time(ours: Step, theirs: Step, rounds: int) -> Times:
    step_s(ours)
    step_s(theirs)
    pairs = []
    for turn in range(rounds):
        if turn % 2:
            second, first = step_s(theirs), step_s(ours)
            pairs.append((first, second))
        else:
            pairs.append((step_s(ours), step_s(theirs)))
    return Times(median(a for a, _ in pairs), median(b for _, b in pairs), median(b / a for a, b in pairs))


def step_s(step: Step) -> float:
    """Return the time of one step in seconds, of the slowest rank."""
    dist.barrier()
    began = time.perf_counter()
    step()
    seconds = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)
