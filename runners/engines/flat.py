"""All weights of a rank in one piece of memory, and all gradients in another: one transfer, one optimizer kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from runners.models.megatron import is_in_sequence_part, is_shared


class FlatParameters:
    """Weights in fp32 and their gradients in fp32; where the arithmetic has 16 bits, a copy of the weights in it.

    In order: what tensor parallel ranks share, what they hold alike but use on parts of the sequence, what they hold
    and use alike.
    """

    def __init__(self, model: nn.Module, precision: torch.dtype, *, has_sequence_parts: bool) -> None:
        """Move the weights of a model, which is in fp32, into one piece, in which its parameters are views."""

        def order(name: str) -> int:
            return 0 if is_shared(name) else 1 if has_sequence_parts and is_in_sequence_part(name) else 2

        named = sorted(model.named_parameters(), key=lambda item: order(item[0]))
        self.parameters = [parameter for _, parameter in named]
        """In the order in which they lie."""
        self.names = [name for name, _ in named]
        sizes = [0, 0, 0]
        for name, parameter in named:
            sizes[order(name)] += parameter.numel()
        flat = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        self.weights = nn.Parameter(flat)
        """What the optimizer steps on."""
        self.gradient = torch.zeros_like(flat)
        self.weights.grad = self.gradient
        self.shared, self.in_parts, self.alike = torch.split(self.gradient, sizes)
        self.is_mixed = precision != torch.float32
        self._low = flat.to(precision) if self.is_mixed else self.weights.detach()
        self._is_first = [True] * len(self.parameters)
        pairs = zip(self._views(self._low), self._views(self.gradient), strict=True)
        for index, (parameter, (view, gradient)) in enumerate(zip(self.parameters, pairs, strict=True)):
            parameter.data = view.view(parameter.shape)
            move = self._move_to(gradient.view(parameter.shape), index)
            parameter.register_post_accumulate_grad_hook(move)  # type: ignore[no-untyped-call]

    def _views(self, flat: Tensor) -> Sequence[Tensor]:
        return torch.split(flat, [parameter.numel() for parameter in self.parameters])

    def _move_to(self, gradient: Tensor, index: int) -> Callable[[Tensor], None]:
        """Make what moves one parameter's gradient into the flat one after each backward pass."""

        def move(parameter: Tensor) -> None:
            if parameter.grad is None or parameter.grad.data_ptr() == gradient.data_ptr():
                return  # fp32: autograd has added it up in place
            if self._is_first[index]:
                gradient.copy_(parameter.grad)
                self._is_first[index] = False
            else:
                gradient.add_(parameter.grad)
            parameter.grad = None if self.is_mixed else gradient

        return move

    def begin_step(self) -> None:
        """Forget the gradients: the next ones overwrite them, which is cheaper than clearing first and adding."""
        self._is_first = [True] * len(self.parameters)
        for parameter in self.parameters:
            parameter.grad = None

    def copy_to_model(self) -> None:
        """Round the weights for the next step; nothing to do where the arithmetic is fp32."""
        if self.is_mixed:
            self._low.copy_(self.weights.detach())

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Cut something as long as the weights into one tensor for each parameter."""
        shapes = [parameter.shape for parameter in self.parameters]
        return {name: v.view(s) for name, v, s in zip(self.names, self._views(flat), shapes, strict=True)}
