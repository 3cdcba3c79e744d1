"""Two real ranks of engine zero that train many configurations one after the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from runners.config import RunConfig
from runners.engines.process_group import Place, join, leave
from runners.engines.rank import Rank
from runners.engines.zero import ZeroTrainer
from tests.engines.ranks import CONTEXT, TIMEOUT


def train_with_zero(configs: Mapping[str, RunConfig], steps: int, directory: Path) -> dict[str, list[list[float]]]:
    """Train each config on two processes; return the losses of each rank by the configs' names."""
    ranks = [CONTEXT.Process(target=_rank, args=(rank, configs, steps, directory)) for rank in (0, 1)]
    try:
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(180)
        assert [process.exitcode for process in ranks] == [0, 0]
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
                process.join()
    saved = [torch.load(directory / f"{rank}.pt") for rank in (0, 1)]
    return {name: [losses[name] for losses in saved] for name in configs}


def _rank(number: int, configs: Mapping[str, RunConfig], steps: int, directory: Path) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2")
    place = Place(number, 2, number, 2, f"file://{directory}/rendezvous")
    join(place, torch.device("cpu"), TIMEOUT)
    losses = {}
    with open(directory / f"{number}.log", "w") as log, contextlib.redirect_stdout(log):
        for name, config in configs.items():
            trainer = ZeroTrainer(Rank(config, place))
            losses[name] = [trainer.train_step(step).loss.value() for step in range(1, steps + 1)]
            trainer.close()
    torch.save(losses, directory / f"{number}.pt")
    leave()
