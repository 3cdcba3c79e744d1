"""All weights of a rank in one tensor and all gradients in another: one transfer, one optimizer kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from runners.models.megatron import is_in_sequence_part, is_shared


class FlatParameters:
    """Flat weights and gradients in fp32, and for 16-bit compute a copy of the weights in that precision.

    Parameters are sorted into three groups: `shared` (split over tensor parallel ranks), `in_parts` (replicated, but
    applied to a part of the sequence) and `alike` (replicated, and applied to the same data).
    """

    def __init__(self, model: nn.Module, precision: torch.dtype, *, has_sequence_parts: bool) -> None:
        """Move the weights of an fp32 model into one flat tensor and turn its parameters into views of it."""

        def order(name: str) -> int:
            return 0 if is_shared(name) else 1 if has_sequence_parts and is_in_sequence_part(name) else 2

        named = sorted(model.named_parameters(), key=lambda item: order(item[0]))
        self.parameters = [parameter for _, parameter in named]
        """In memory order."""
        self.names = [name for name, _ in named]
        sizes = [0, 0, 0]
        for name, parameter in named:
            sizes[order(name)] += parameter.numel()
        flat = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        self.weights = nn.Parameter(flat)
        """The fp32 weights that the optimizer updates."""
        self.gradient = torch.zeros_like(flat)
        self.weights.grad = self.gradient
        self.shared, self.in_parts, self.alike = torch.split(self.gradient, sizes)
        self.is_mixed = precision != torch.float32
        self._model_weights = flat.to(precision) if self.is_mixed else self.weights.detach()
        self._is_first = [True] * len(self.parameters)
        pairs = zip(self._views(self._model_weights), self._views(self.gradient), strict=True)
        for index, (parameter, (view, gradient)) in enumerate(zip(self.parameters, pairs, strict=True)):
            parameter.data = view.view(parameter.shape)
            move = self._move_to(gradient.view(parameter.shape), index)
            parameter.register_post_accumulate_grad_hook(move)  # type: ignore[no-untyped-call]

    def _views(self, flat: Tensor) -> Sequence[Tensor]:
        return torch.split(flat, [parameter.numel() for parameter in self.parameters])

    def _move_to(self, gradient: Tensor, index: int) -> Callable[[Tensor], None]:
        """Return the hook that moves a parameter's gradient into its view of the flat gradient."""

        def move(parameter: Tensor) -> None:
            if parameter.grad is None or parameter.grad.data_ptr() == gradient.data_ptr():
                return  # fp32: autograd has accumulated it in place
            if self._is_first[index]:
                gradient.copy_(parameter.grad)
                self._is_first[index] = False
            else:
                gradient.add_(parameter.grad)
            parameter.grad = None if self.is_mixed else gradient

        return move

    def begin_step(self) -> None:
        """Mark the gradients for overwriting, which is cheaper than clearing them and adding."""
        self._is_first = [True] * len(self.parameters)
        for parameter in self.parameters:
            parameter.grad = None

    def copy_to_model(self) -> None:
        """Round the weights to the compute precision for the next step; no-op for fp32."""
        if self.is_mixed:
            self._model_weights.copy_(self.weights.detach())

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Split a tensor as long as the weights into views by parameter name, each in the parameter's shape."""
        shapes = [parameter.shape for parameter in self.parameters]
        return {name: v.view(s) for name, v, s in zip(self.names, self._views(flat), shapes, strict=True)}
