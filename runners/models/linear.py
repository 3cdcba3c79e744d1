"""A linear layer whose weights' gradient can be put off: what zero-bubble schedules need of a network."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class Owed(NamedTuple):
    """The gradient of one layer's weights as the two tensors that it is the product of."""

    layer: Linear
    x: Tensor
    """(..., in)."""
    gradient: Tensor
    """Of the output: (..., out)."""
    has_bias: bool


class WeightGradients:
    """Products that the backward pass through a network leaves undone until somebody asks for them.

    The gradient of a linear layer's weights needs two tensors and nobody waits for it; keeping both is all that
    putting it off costs. Other parameters (norms, embeddings) are cheap and get their gradients at once.
    """

    def __init__(self) -> None:
        self._owed: list[Owed] = []

    def owe(self, owed: Owed) -> None:
        """Remember a product."""
        self._owed.append(owed)

    def collect(self) -> list[Owed]:
        """Hand over all that is owed, for pay() later."""
        owed, self._owed = self._owed, []
        return owed


def pay(owed: list[Owed]) -> None:
    """Add the gradients of the weights that are owed; empties the list, so that tensors are freed on the way.

    By autograd, so that whoever waits for a parameter's gradient (replicas, one piece of memory for all) hears of it.
    """
    while owed:
        layer, x, gradient, has_bias = owed.pop()
        with torch.no_grad():
            rows = gradient.flatten(0, -2)
            of_weight = rows.t() @ x.flatten(0, -2)
        torch.autograd.backward(layer.weight, of_weight.to(layer.weight.dtype))
        if has_bias:
            torch.autograd.backward(layer.bias, rows.sum(0).to(layer.bias.dtype))


class _Postponed(torch.autograd.Function):
    """x @ weight.T + bias, whose backward pass computes the gradient of x only.

    The weights are no inputs of it: autograd would tell those who wait for their gradients that one has come.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Linear, has_bias: bool) -> Tensor:
        device = x.device.type
        ctx.precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        if ctx.precision:  # what is kept is what is multiplied
            x = x.to(ctx.precision)
        ctx.layer, ctx.has_bias = layer, has_bias
        ctx.save_for_backward(x)
        return functional.linear(x, layer.weight, layer.bias if has_bias else None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        (x,) = ctx.saved_tensors
        layer: Linear = ctx.layer
        assert layer.later is not None
        layer.later.owe(Owed(layer, x, gradient, ctx.has_bias))
        with torch.autocast(gradient.device.type, ctx.precision or torch.bfloat16, enabled=ctx.precision is not None):
            return gradient @ layer.weight, None, None


class Linear(nn.Linear):
    """torch's linear layer; with `later` set, its weights' gradient is owed instead of computed."""

    later: WeightGradients | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self._apply_to(x, self.bias)

    def product(self, x: Tensor) -> Tensor:
        """Return x @ weight.T without the bias, for ranks that have each a part of a sum."""
        return self._apply_to(x, None)

    def _apply_to(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.later is None or not torch.is_grad_enabled():
            return functional.linear(x, self.weight, bias)
        x = x if x.requires_grad else x.detach().requires_grad_()  # or no backward pass would come by here
        return cast(Tensor, _Postponed.apply(x, self, bias is not None))  # type: ignore[no-untyped-call]


def postpone(network: nn.Module) -> WeightGradients:
    """Have all linear layers of a network owe the gradients of their weights; returns where they are collected."""
    later = WeightGradients()
    for module in network.modules():
        if isinstance(module, Linear):
            module.later = later
    return later
