"""A linear layer whose weights' gradient can be put off: what zero-bubble schedules need of a network."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class WeightGradients:
    """Products that the backward pass through a network leaves undone until somebody asks for them.

    The gradient of a linear layer's weights needs two tensors and nobody waits for it; keeping both is all that
    putting it off costs. Other parameters (norms, embeddings) are cheap and get their gradients at once.
    """

    def __init__(self) -> None:
        self._owed: list[tuple[nn.Linear, Tensor, Tensor]] = []

    def owe(self, layer: nn.Linear, x: Tensor, gradient: Tensor) -> None:
        """Remember input (..., in) and gradient of the output (..., out) of a layer."""
        self._owed.append((layer, x, gradient))

    def collect(self) -> list[tuple[nn.Linear, Tensor, Tensor]]:
        """Hand over all that is owed, for pay() later."""
        owed, self._owed = self._owed, []
        return owed


def pay(owed: list[tuple[nn.Linear, Tensor, Tensor]]) -> None:
    """Add the gradients of the weights that are owed; empties the list, so that tensors are freed on the way."""
    with torch.no_grad():
        while owed:
            layer, x, gradient = owed.pop()
            rows = gradient.flatten(0, -2)
            _add(layer.weight, rows.t() @ x.flatten(0, -2))
            if layer.bias is not None:
                _add(layer.bias, rows.sum(0))


def _add(parameter: Tensor, gradient: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient.to(parameter.dtype)
    else:
        parameter.grad += gradient


class _Postponed(torch.autograd.Function):
    """x @ weight.T + bias, whose backward pass computes the gradient of x only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Linear, _weight: Tensor) -> Tensor:
        device = x.device.type
        ctx.precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        if ctx.precision:  # what is kept is what is multiplied
            x = x.to(ctx.precision)
        ctx.layer = layer
        ctx.save_for_backward(x)
        return functional.linear(x, layer.weight, layer.bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        (x,) = ctx.saved_tensors
        layer: Linear = ctx.layer
        assert layer.later is not None
        layer.later.owe(layer, x, gradient)
        with torch.autocast(gradient.device.type, ctx.precision or torch.bfloat16, enabled=ctx.precision is not None):
            return gradient @ layer.weight, None, None


class Linear(nn.Linear):
    """torch's linear layer; with `later` set, its weights' gradient is owed instead of computed."""

    later: WeightGradients | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.later is None or not torch.is_grad_enabled():
            return super().forward(x)
        return cast(Tensor, _Postponed.apply(x, self, self.weight))  # type: ignore[no-untyped-call]


def postpone(network: nn.Module) -> WeightGradients:
    """Have all linear layers of a network owe the gradients of their weights; returns where they are collected."""
    later = WeightGradients()
    for module in network.modules():
        if isinstance(module, Linear):
            module.later = later
    return later
