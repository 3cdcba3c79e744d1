"""What a training loop hands over to be saved, and takes back."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from runners.config import RunConfig


class Part(NamedTuple):
    """The part of a tensor of the whole model that this rank has."""

    tensor: Tensor
    """Memory of the training."""
    dimension: int | None = None
    """Dimension along which tensor parallel ranks split the whole tensor; None: this rank has all of it."""


class State(Protocol):
    """What a training loop stores."""

    def parts(self) -> dict[str, Part]:
        """Return weights and optimizer state by global names."""

    def own(self) -> dict[str, Tensor]:
        """Return what only this rank has in this layout, like rounding errors that it carries on."""

    def numbers(self) -> dict[str, Any]:
        """Return numbers that all ranks have alike."""

    def loaded(self, numbers: Mapping[str, Any], own: Mapping[str, Tensor]) -> None:
        """Take over numbers and what only this rank has, once the memory of the parts is filled."""


def torch_format(state: State, config: RunConfig, rank: int, device: torch.device, tensor_ranks: list[int]) -> Any:
    """Return the format of torch's distributed checkpoint, whose import takes a second, for a rank."""
    module = import_module("runners.engines.checkpoints.torch_format")
    return module.TorchFormat(state, config, rank, device, tensor_ranks)
