"""Passes that take a calibrated time and compute nothing: `train.compute: emulated`.

Transfers stay real and have the real size, so a laptop can emulate a pipeline of GPUs. A pass sleeps instead of
spinning, because many ranks share few processors and transfers need processor time.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from runners.config import RunConfig
from runners.engines.training.executor import Boundary
from runners.schedules import Operation

_PR_SET_TIMERSLACK = 29


class EmulatedPasses:
    """The passes of one rank: a forward and a backward time for each stage of the model."""

    def __init__(self, config: RunConfig, rank: int, boundary: Boundary) -> None:
        """Allocate the tensor to send, of the boundary's shape and precision, and lower this thread's timer slack.

        Raises ValueError if the configuration has no times; the server fills in those of `emulation.source_run`.
        """
        parallel, times = config.parallel, config.emulation
        self._num_ranks, self._rank = parallel.pipeline_parallel_size, rank
        count = parallel.pipeline_parallel_size * parallel.virtual_stages
        self._forward_s = _seconds("forward_ms", times.forward_ms, count)
        self._backward_s = _seconds("backward_ms", times.backward_ms, count)
        self._optimizer_s = times.optimizer_ms / 1e3
        self._sent = torch.zeros(tuple(boundary.shape), dtype=boundary.precision)
        # By default the kernel may wake a sleeping thread 50 microseconds late to save power.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def forward(self, operation: Operation) -> Tensor:
        """Sleep for a forward pass; return the activations to send."""
        wait(self._forward_s[self._stage(operation)])
        return self._sent

    def backward(self, operation: Operation) -> Tensor:
        """Sleep for a backward pass, or half of it for I and W; return the gradient to send."""
        seconds = self._backward_s[self._stage(operation)]
        wait(seconds if operation.kind == "B" else seconds / 2)
        return self._sent

    def optimizer(self) -> None:
        """Sleep for the optimizer step."""
        wait(self._optimizer_s)

    def _stage(self, operation: Operation) -> int:
        return operation.chunk * self._num_ranks + self._rank


def wait(seconds: float) -> None:
    """Sleep for `seconds`, to within about 0.05 ms if a processor is free."""
    until = time.perf_counter() + seconds
    while (remaining := until - time.perf_counter()) > 0:
        time.sleep(remaining)


def _seconds(name: str, times_ms: Sequence[float] | None, num_stages: int) -> list[float]:
    if times_ms is None:
        raise ValueError(f"emulation.{name} is empty; set it, or set emulation.source_run and launch from the server")
    return [time_ms / 1e3 for time_ms in (times_ms if len(times_ms) > 1 else list(times_ms) * num_stages)]
