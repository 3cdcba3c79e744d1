"""Precision of transfers between stages: unchanged, 16 bits, or 8 bits with error feedback."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_SCALE_BYTES = 4
_LARGEST = 127
_SMALLEST_SCALE = 1e-30


class Wire:
    """Conversion between the compute precision and a floating point precision for transfers.

    Each direction of a link has its own instance. `shape` is that of the tensor, (..., columns).
    """

    has_feedback = False
    """Whether the rounding error of a message is added to the next one."""
    error: Tensor | None = None
    """That of the last message."""

    def __init__(self, shape: Sequence[int], wire_dtype: torch.dtype, precision: torch.dtype) -> None:
        self._shape = tuple(shape)
        self._wire_dtype, self._precision = wire_dtype, precision

    @property
    def is_same(self) -> bool:
        """Whether a received message needs no conversion."""
        return self._wire_dtype == self._precision

    def carried(self, device: torch.device) -> Tensor:
        """Return the error that the next message carries on, as rows and columns; 0 before the first one."""
        rows, columns = math.prod(self._shape[:-1]), self._shape[-1]
        return torch.zeros(rows, columns, device=device) if self.error is None else self.error

    def buffer(self, device: torch.device) -> Tensor:
        """Allocate a buffer for one message."""
        return torch.empty(self._shape, dtype=self._wire_dtype, device=device)

    def encode(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._wire_dtype).contiguous()

    def decode(self, message: Tensor) -> Tensor:
        return message.to(self._precision)


class EightBitWire(Wire):
    """One byte per number and one fp32 scale per row (the last dimension), with error feedback.

    The rounding error of a message is added to the next message of the same direction before that is rounded, so that
    errors do not accumulate over the micro batches of a step. Source: Seide et al. 2014, 1-bit SGD; Karimireddy et al.
    2019.
    """

    has_feedback = True

    def __init__(self, shape: Sequence[int], precision: torch.dtype) -> None:
        super().__init__(shape, torch.uint8, precision)
        self._columns = int(shape[-1])
        self._rows = math.prod(shape[:-1])

    def buffer(self, device: torch.device) -> Tensor:
        # Scales come first, because they are read as fp32, which must be aligned.
        return torch.empty(self._rows * (_SCALE_BYTES + self._columns), dtype=torch.uint8, device=device)

    def encode(self, tensor: Tensor) -> Tensor:
        numbers = tensor.detach().reshape(self._rows, self._columns).float()
        if self.error is not None:
            numbers = numbers + self.error
        scales = (numbers.abs().amax(1, keepdim=True) / _LARGEST).clamp_min(_SMALLEST_SCALE)
        rounded = (numbers / scales).round().clamp(-_LARGEST, _LARGEST)
        # NaN and infinity must not enter the feedback, or they would spread to all later messages.
        self.error = torch.nan_to_num(numbers - rounded * scales, 0.0, 0.0, 0.0)
        whole = torch.nan_to_num(rounded, 0.0).to(torch.int8)
        return torch.cat([scales.flatten().view(torch.uint8), whole.flatten().view(torch.uint8)])

    def decode(self, message: Tensor) -> Tensor:
        split = self._rows * _SCALE_BYTES
        scales = message[:split].view(torch.float32).view(self._rows, 1)
        whole = message[split:].view(torch.int8).view(self._rows, self._columns)
        return (whole.float() * scales).view(self._shape).to(self._precision)
