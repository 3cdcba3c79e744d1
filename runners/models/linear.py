"""A linear layer whose weight gradient can be deferred, as zero-bubble schedules require."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class WeightProduct(NamedTuple):
    """A deferred weight gradient: the two tensors of which it is the product."""

    layer: Linear
    x: Tensor
    """(..., in), the input."""
    gradient: Tensor
    """(..., out), the gradient of the output."""
    has_bias: bool


class WeightGradients:
    """Collects the weight gradients that backward passes through a network defer.

    The weight gradient of a linear layer is a product of two tensors that no other pass depends on; deferring it costs
    the memory of both. Other parameters (norms, embeddings) are cheap and get their gradients at once.
    """

    def __init__(self) -> None:
        self._products: list[WeightProduct] = []

    def defer(self, product: WeightProduct) -> None:
        self._products.append(product)

    def collect(self) -> list[WeightProduct]:
        """Remove and return all products, for accumulate() later."""
        products, self._products = self._products, []
        return products


def accumulate(products: list[WeightProduct]) -> None:
    """Compute deferred weight gradients and add them to `.grad`; empty the list, so that each product is freed.

    It goes through autograd, so that hooks on a parameter's gradient (Replicas, FlatParameters) run.
    """
    while products:
        layer, x, gradient, has_bias = products.pop()
        with torch.no_grad():
            rows = gradient.flatten(0, -2)
            weight_gradient = rows.t() @ x.flatten(0, -2)
        torch.autograd.backward(layer.weight, weight_gradient.to(layer.weight.dtype))
        if has_bias:
            torch.autograd.backward(layer.bias, rows.sum(0).to(layer.bias.dtype))


class _DeferredLinear(torch.autograd.Function):
    """x @ weight.T + bias, whose backward pass computes the gradient of x only.

    The weights are not inputs of the function: autograd would otherwise run the hooks on their gradients.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Linear, has_bias: bool) -> Tensor:
        device = x.device.type
        ctx.precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        if ctx.precision:  # save the tensor that is multiplied, in 16 bits
            x = x.to(ctx.precision)
        ctx.layer, ctx.has_bias = layer, has_bias
        ctx.save_for_backward(x)
        return functional.linear(x, layer.weight, layer.bias if has_bias else None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        (x,) = ctx.saved_tensors
        layer: Linear = ctx.layer
        assert layer.collector is not None
        layer.collector.defer(WeightProduct(layer, x, gradient, ctx.has_bias))
        with torch.autocast(gradient.device.type, ctx.precision or torch.bfloat16, enabled=ctx.precision is not None):
            return gradient @ layer.weight, None, None


class Linear(nn.Linear):
    """torch's linear layer; if `collector` is set, the weight gradient is deferred to it."""

    collector: WeightGradients | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self._apply_to(x, self.bias)

    def product(self, x: Tensor) -> Tensor:
        """Return x @ weight.T without the bias, for ranks that each compute a part of a sum."""
        return self._apply_to(x, None)

    def _apply_to(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.collector is None or not torch.is_grad_enabled():
            return functional.linear(x, self.weight, bias)
        x = x if x.requires_grad else x.detach().requires_grad_()  # else autograd would skip this backward pass
        return cast(Tensor, _DeferredLinear.apply(x, self, bias is not None))  # type: ignore[no-untyped-call]


def defer_weight_gradients(network: nn.Module) -> WeightGradients:
    """Defer the weight gradients of all linear layers of a network; return their collector."""
    collector = WeightGradients()
    for module in network.modules():
        if isinstance(module, Linear):
            module.collector = collector
    return collector
