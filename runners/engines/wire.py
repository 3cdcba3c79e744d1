"""How numbers travel between stages: as they were computed, in 16 bits, or in 8 with error feedback."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_SCALE_BYTES = 4
_LARGEST = 127
_SMALLEST_SCALE = 1e-30


class Wire:
    """Numbers of a shape that travel in a precision of floating point; one for each direction of a link."""

    def __init__(self, shape: Sequence[int], travels: torch.dtype, precision: torch.dtype) -> None:
        self._shape = tuple(shape)
        self._travels, self._precision = travels, precision

    @property
    def is_same(self) -> bool:
        """What arrives needs no conversion."""
        return self._travels == self._precision

    def buffer(self, device: torch.device) -> Tensor:
        """Make room for one message."""
        return torch.empty(self._shape, dtype=self._travels, device=device)

    def encode(self, tensor: Tensor) -> Tensor:
        """Return what travels."""
        return tensor.to(self._travels).contiguous()

    def decode(self, message: Tensor) -> Tensor:
        """Return what was sent, in the precision of the arithmetic."""
        return message.to(self._precision)


class EightBitWire(Wire):
    """A byte for each number and a scale for each row, the last dimension; what rounding loses goes with the next one.

    Error feedback (Seide et al. 2014, 1-bit SGD; Karimireddy et al. 2019): the error of a message is added to the next
    message of the same direction before that is rounded, so that errors do not add up over the micro batches of a step.
    """

    def __init__(self, shape: Sequence[int], precision: torch.dtype) -> None:
        super().__init__(shape, torch.uint8, precision)
        self._columns = int(shape[-1])
        self._rows = math.prod(shape[:-1])
        self._error: Tensor | None = None

    def buffer(self, device: torch.device) -> Tensor:
        # Scales first: they are read as fp32, which must be aligned.
        return torch.empty(self._rows * (_SCALE_BYTES + self._columns), dtype=torch.uint8, device=device)

    def encode(self, tensor: Tensor) -> Tensor:
        numbers = tensor.detach().reshape(self._rows, self._columns).float()
        if self._error is not None:
            numbers = numbers + self._error
        scales = (numbers.abs().amax(1, keepdim=True) / _LARGEST).clamp_min(_SMALLEST_SCALE)
        rounded = (numbers / scales).round().clamp(-_LARGEST, _LARGEST)
        # A training that has diverged stays so; but its errors must not come back in what follows.
        self._error = torch.nan_to_num(numbers - rounded * scales, 0.0, 0.0, 0.0)
        whole = torch.nan_to_num(rounded, 0.0).to(torch.int8)
        return torch.cat([scales.flatten().view(torch.uint8), whole.flatten().view(torch.uint8)])

    def decode(self, message: Tensor) -> Tensor:
        split = self._rows * _SCALE_BYTES
        scales = message[:split].view(torch.float32).view(self._rows, 1)
        whole = message[split:].view(torch.int8).view(self._rows, self._columns)
        return (whole.float() * scales).view(self._shape).to(self._precision)
