"""The state of the training loops under names of the whole model, which no layout changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from runners.engines.checkpoints.state import Part
from runners.engines.training.megatron_stage import MegatronRank
from runners.engines.training.stage import PipelineStage
from runners.models.megatron import split_dimension

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Tensors that Adam keeps of each weight; SGD without momentum keeps none."""
_STEP = "step"


class SavedStage:
    """What engine pipeline stores of a rank; nothing of emulated compute."""

    def __init__(self, stage: PipelineStage) -> None:
        self._stage = stage
        self._weights = {name: weight for chunk in stage.model for name, weight in chunk.named_parameters()}

    def parts(self) -> dict[str, Part]:
        optimizer = self._stage.optimizer
        if optimizer is None:
            return {}
        parts = {}
        for name, weight in self._weights.items():
            state = _adam_state(optimizer, weight)
            tensors = {f"model.{name}": weight, **{f"optimizer.{moment}.{name}": state[moment] for moment in state}}
            tensors.pop(f"optimizer.{_STEP}.{name}", None)
            parts.update({key: _whole_part(name, tensor) for key, tensor in tensors.items()})
        return parts

    def own(self) -> dict[str, Tensor]:
        return self._stage.carried_errors()

    def numbers(self) -> dict[str, Any]:
        optimizer = self._stage.optimizer
        return {} if optimizer is None else {"optimizer_steps": _steps(optimizer), **_rates(optimizer)}

    def loaded(self, numbers: Mapping[str, Any], own: Mapping[str, Tensor]) -> None:
        if self._stage.optimizer is not None:
            _set_steps(self._stage.optimizer, numbers)
        self._stage.carry_errors(own)


class SavedRank:
    """What engine megatron stores of a rank."""

    def __init__(self, rank: MegatronRank) -> None:
        self._rank = rank

    def parts(self) -> dict[str, Part]:
        flat, optimizer = self._rank.flat, self._rank.optimizer
        state = _adam_state(optimizer, flat.weights)
        tensors = {
            "model": flat.weights,
            **{f"optimizer.{moment}": state[moment] for moment in state if moment != _STEP},
        }
        return {
            f"{prefix}.{global_name(name)}": _part(name, view)
            for prefix, tensor in tensors.items()
            for name, view in flat.named(tensor.detach()).items()
        }

    def own(self) -> dict[str, Tensor]:
        return self._rank.carried_errors()

    def numbers(self) -> dict[str, Any]:
        optimizer = self._rank.optimizer
        return {"optimizer_steps": _steps(optimizer), "loss_scale": self._rank.loss_scale.state(), **_rates(optimizer)}

    def loaded(self, numbers: Mapping[str, Any], own: Mapping[str, Tensor]) -> None:
        _set_steps(self._rank.optimizer, numbers)
        if "loss_scale" in numbers:
            self._rank.loss_scale.restore(numbers["loss_scale"])
        self._rank.flat.copy_to_model()
        self._rank.carry_errors(own)


def global_name(name: str) -> str:
    """Return the name of a parameter without the number of its chunk on this rank."""
    return name.partition(".")[2]


def _whole_part(name: str, tensor: Tensor) -> Part:
    """Return a parameter that is not split, in the shape in which tensor parallel ranks split it."""
    return Part(_part(name, tensor.detach()).tensor)


def _part(name: str, tensor: Tensor) -> Part:
    dimension = split_dimension(name)
    if "qkv" in name:  # query, key and value, of each of which a rank has some heads
        tensor = tensor.view(3, tensor.shape[0] // 3, *tensor.shape[1:])
    return Part(tensor, dimension)


def _adam_state(optimizer: torch.optim.Optimizer, weight: Tensor) -> dict[str, Tensor]:
    """Return the state of a weight, which before the first step is created as Adam would."""
    state: dict[str, Tensor] = optimizer.state[weight]
    if not state and isinstance(optimizer, torch.optim.Adam):
        state[_STEP] = torch.zeros((), dtype=torch.float32, device=weight.device)
        state.update({moment: torch.zeros_like(weight, memory_format=torch.preserve_format) for moment in MOMENTS})
    return state


def _states(optimizer: torch.optim.Optimizer) -> Iterator[dict[str, Tensor]]:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            yield _adam_state(optimizer, weight)


def _steps(optimizer: torch.optim.Optimizer) -> float:
    """Return how many steps the optimizer has made, which are fewer than those of the training if some were skipped."""
    return max((float(state[_STEP]) for state in _states(optimizer) if _STEP in state), default=0.0)


def _set_steps(optimizer: torch.optim.Optimizer, numbers: Mapping[str, Any]) -> None:
    for state in _states(optimizer):
        if _STEP in state:
            state[_STEP].fill_(float(numbers["optimizer_steps"]))
    for group, rate in zip(optimizer.param_groups, numbers.get("learning_rates", []), strict=False):
        group["lr"] = rate


def _rates(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the learning rates, which are all that the schedule of these loops, a constant, has."""
    return {"learning_rates": [float(group["lr"]) for group in optimizer.param_groups]}
