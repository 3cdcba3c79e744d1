"""An engine that is not parlab's: its row and its module, as CONTRIBUTING.md describes them.

Each step, its ranks add up their numbers with an all-reduce.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from runners.config.engines import ENGINES, Engine
from runners.engines.process.process_group import barrier, leave
from runners.engines.process.rank import Rank, start

TOY = Engine(
    name="toy",
    module="tests.runners.toy_engine",
    purpose="adds up the numbers of its ranks",
    fields=("train.log_interval",),
    trains=True,
    may_span_nodes=True,
)


def register() -> None:
    """Add the row to the table of this process."""
    ENGINES[TOY.name] = TOY


def run(rank: Rank) -> None:
    """Train all iterations and print events."""
    rank.join()
    rank.emit_start(TOY.name, "none", parameters=1)
    seconds = []
    for step in range(1, rank.config.train.iterations + 1):
        began = time.monotonic()
        total = torch.tensor([float(rank.place.rank + 1)])
        dist.all_reduce(total)
        seconds.append(time.monotonic() - began)
        rank.printer.emit("step", step=step, step_time_s=round(seconds[-1], 9), loss=total.item())
    rank.emit_end(seconds)
    barrier(rank.device)
    leave()


if __name__ == "__main__":
    register()
    start(TOY.name, run)
