"""The format of our own training loops: torch's distributed checkpoint, with names that no layout changes.

Each rank describes its part of every tensor of the whole model, so that ranks of another layout find theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from runners.config import RunConfig
from runners.engines.checkpoints.folder import Checkpoint
from runners.engines.checkpoints.session import first_line, layout_of
from runners.engines.checkpoints.state import Part, State


class _Writer(FileSystemWriter):
    """Takes a state that is already a copy in the memory of the CPU."""

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return state_dict


class TorchFormat:
    """Weights, optimizer state and random numbers of a training loop."""

    def __init__(
        self, state: State, config: RunConfig, rank: int, device: torch.device, tensor_ranks: list[int]
    ) -> None:
        """`tensor_ranks` are the ranks with which this one shares each layer, in order."""
        self._state, self._config, self._rank, self._device = state, config, rank, device
        self._tensor_ranks = tensor_ranks
        self._mesh: DeviceMesh | None = None
        self._copies: dict[str, Tensor] = {}

    def facts(self) -> dict[str, Any]:
        train = self._config.train
        data = {"seed": train.seed, "global_batch_size": train.global_batch_size}
        return {"format": "torch", "data": data, "numbers": self._state.numbers()}

    def write(self, directory: Path, group: dist.ProcessGroup | None) -> Callable[[], None]:
        staged, error = dict[str, Tensor](), ""
        try:
            staged = self._staged()
        except Exception as failure:  # this rank must take part all the same: the others wait for its plan
            error = first_line(failure)
        future = async_save(staged, storage_writer=_Writer(directory), process_group=group, no_dist=group is None)
        assert isinstance(future, Future)
        return lambda: _wait(future, error)

    def read(self, checkpoint: Checkpoint, group: dist.ProcessGroup | None) -> None:
        """Fill the memory of the training; only in the same layout also with what single ranks have."""
        reader = FileSystemReader(checkpoint.path)
        stored = reader.read_metadata().state_dict_metadata
        parts = self._state.parts()
        wanted = {name: self._split(torch.empty_like(part.tensor, device="cpu"), part) for name, part in parts.items()}
        own = self._own() if checkpoint.facts.get("layout") == layout_of(self._config) else {}
        own = {name: tensor for name, tensor in own.items() if name in stored}
        if missing := sorted(set(wanted) - set(stored)):
            raise ValueError(f"{checkpoint.path} lacks {', '.join(missing[:3])}; use another checkpoint.directory")
        load({**wanted, **own}, storage_reader=reader, process_group=group, no_dist=group is None)
        with torch.no_grad():
            for name, part in parts.items():
                part.tensor.copy_(_local(wanted[name]))
        _set_random_state(own.pop(self._random("cpu"), None), own.pop(self._random("cuda"), None), self._device)
        prefix = self._own_name("")
        self._state.loaded(
            checkpoint.facts["numbers"], {name.removeprefix(prefix): tensor for name, tensor in own.items()}
        )

    def _staged(self) -> dict[str, Tensor]:
        """Copy everything into memory of the CPU that is used again each time."""
        staged = {}
        for name, part in self._state.parts().items():
            copy = self._copies.get(name)
            if copy is None:
                copy = self._copies[name] = torch.empty(part.tensor.shape, dtype=part.tensor.dtype)
            copy.copy_(part.tensor.detach(), non_blocking=True)
            staged[name] = self._split(copy, part)
        own = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._own().items()}
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return {**staged, **own}

    def _own(self) -> dict[str, Tensor]:
        own = {self._own_name(name): tensor for name, tensor in self._state.own().items()}
        own[self._random("cpu")] = torch.get_rng_state()
        if self._device.type == "cuda":
            own[self._random("cuda")] = torch.cuda.get_rng_state(self._device)
        return own

    def _own_name(self, name: str) -> str:
        return f"rank.{self._rank}.{name}"

    def _random(self, device: str) -> str:
        return self._own_name(f"random.{device}")

    def _split(self, tensor: Tensor, part: Part) -> Tensor:
        """Describe a tensor in the memory of the CPU as a part of the whole one."""
        if part.dimension is None or len(self._tensor_ranks) == 1:
            return tensor
        if self._mesh is None:
            # Only the ranks' numbers are needed: nothing is sent over this mesh.
            self._mesh = DeviceMesh("cpu", self._tensor_ranks, _init_backend=False)
        return DTensor.from_local(tensor, self._mesh, [Shard(part.dimension)], run_check=False)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _wait(future: Future[Any], error: str) -> None:
    """Wait for a save; torch's error of several ranks is no Exception."""
    if failure := future.exception():
        error = error or first_line(failure)
    if error:
        raise OSError(error) from failure


def _set_random_state(cpu: Tensor | None, cuda: Tensor | None, device: torch.device) -> None:
    if cpu is not None:
        torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda, device)
