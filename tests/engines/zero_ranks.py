"""Ranks of engine zero in real processes, which train many configurations in sequence."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from runners.config import RunConfig
from runners.engines.process.process_group import Place, join, leave
from runners.engines.process.rank import Rank
from runners.engines.zero import ZeroTrainer
from tests.engines.ranks import TIMEOUT, run_ranks


def train_with_zero(
    configs: Mapping[str, RunConfig], steps: int, directory: Path, world_size: int = 2
) -> dict[str, list[list[float]]]:
    """Train each config on real processes; return the losses of each rank by the configs' names."""
    run_ranks(_rank, world_size, configs, steps, directory)
    saved = [torch.load(directory / f"{rank}.pt") for rank in range(world_size)]
    return {name: [losses[name] for losses in saved] for name in configs}


def _rank(number: int, world_size: int, configs: Mapping[str, RunConfig], steps: int, directory: Path) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(world_size))
    place = Place(number, world_size, number, world_size, f"file://{directory}/rendezvous")
    join(place, torch.device("cpu"), TIMEOUT)
    losses = {}
    with open(directory / f"{number}.log", "w") as log, contextlib.redirect_stdout(log):
        for name, config in configs.items():
            trainer = ZeroTrainer(Rank(config, place))
            losses[name] = [trainer.train_step(step).loss.value() for step in range(1, steps + 1)]
            trainer.close()
    torch.save(losses, directory / f"{number}.pt")
    leave()
