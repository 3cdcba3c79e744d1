"""The format of engine zero: DeepSpeed's own, one file per rank for the partitioned states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from runners.config import ConfigError, Problem, RunConfig
from runners.engines.checkpoints.folder import Checkpoint
from runners.engines.checkpoints.host_copies import HostCopies, replaced
from runners.engines.checkpoints.session import first_line, layout_of

TAG = "state"
"""Name of DeepSpeed's directory within a checkpoint."""


class DeepSpeedFormat:
    """What DeepSpeed stores, and the random numbers of each rank."""

    def __init__(self, engine: Any, config: RunConfig, rank: int) -> None:
        self._engine, self._config, self._rank = engine, config, rank
        self._copies = HostCopies()

    def facts(self) -> dict[str, Any]:
        train = self._config.train
        return {"format": "deepspeed", "data": {"seed": train.seed, "global_batch_size": train.global_batch_size}}

    def write(self, directory: Path, group: dist.ProcessGroup | None) -> Callable[[], None]:
        """Copy what DeepSpeed would write. Its own decoupled writer copies nothing: the next update would wait."""
        errors = list[str]()
        writer = self._engine.checkpoint_engine
        self._copies.begin()
        with ExitStack() as guards:
            guards.enter_context(self._copies.instead_of(writer, "save"))
            for owner, name in ((writer, "save"), (writer, "makedirs"), (self._engine, "_copy_recovery_script")):
                guards.enter_context(_guarded(owner, name, errors))
            self._engine.save_checkpoint(str(directory), tag=TAG, save_latest=False)
            writer.save(_random_state(), str(directory / _random_name(self._rank)))

        def written() -> None:
            if errors:
                raise OSError(errors[0])
            self._copies.write()

        return written

    def read(self, checkpoint: Checkpoint, group: dist.ProcessGroup | None) -> None:
        """Raise ConfigError for another layout, which DeepSpeed's files do not fit."""
        saved, here = checkpoint.facts.get("layout", {}), layout_of(self._config)
        for name in ("data", "zero_stage"):
            if saved.get(name) != here[name]:
                field = {"data": "data_parallel_size", "zero_stage": "zero_stage"}[name]
                message = (
                    f"DeepSpeed wrote {checkpoint.path} with {field} {saved.get(name)} and reads it with no other;"
                    f" use {field} {saved.get(name)}, or another checkpoint.directory"
                )
                raise ConfigError([Problem(f"parallel.{field}", here[name], message)])
        path, _ = self._engine.load_checkpoint(str(checkpoint.path), tag=TAG)
        if path is None:
            raise ValueError(f"DeepSpeed found no state in {checkpoint.path}; use another checkpoint.directory")
        random = torch.load(checkpoint.path / _random_name(self._rank), weights_only=True)
        torch.set_rng_state(random["cpu"])
        if "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"])


@contextmanager
def _guarded(owner: Any, name: str, errors: list[str]) -> Iterator[None]:
    """Note the errors of a method that writes files: in the barriers that follow, the other ranks wait for this one."""
    method = getattr(owner, name)

    def guarded(*arguments: Any, **named: Any) -> None:
        try:
            method(*arguments, **named)
        except Exception as error:
            errors.append(first_line(error))

    with replaced(owner, name, guarded):
        yield


def _random_state() -> dict[str, torch.Tensor]:
    cuda = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}
    return {"cpu": torch.get_rng_state(), **cuda}


def _random_name(rank: int) -> str:
    return f"random-{rank}.pt"
