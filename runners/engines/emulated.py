"""Passes that take a calibrated time and compute nothing: `train.compute: emulated`.

What a stage receives and sends stays real and of the real size, so a laptop answers for a pipeline of GPUs. Waiting
sleeps and does not spin: many ranks share few processors, and their transfers need those.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from runners.config import RunConfig
from runners.engines.executor import Boundary
from runners.schedules import Operation

_PR_SET_TIMERSLACK = 29


class EmulatedPasses:
    """The passes of one rank: one time forward and one backward for each stage of the model."""

    def __init__(self, config: RunConfig, rank: int, boundary: Boundary) -> None:
        """Make what is sent, of the boundary's shape, and have the kernel wake this thread on time.

        Raises ValueError when the configuration has no times: the server fills in those of a source_run.
        """
        parallel, times = config.parallel, config.emulation
        self._num_ranks, self._rank = parallel.pipeline_parallel_size, rank
        count = parallel.pipeline_parallel_size * parallel.virtual_stages
        self._forward_s = _seconds("forward_ms", times.forward_ms, count)
        self._backward_s = _seconds("backward_ms", times.backward_ms, count)
        self._optimizer_s = times.optimizer_ms / 1e3
        self._sent = torch.zeros(tuple(boundary.shape), dtype=boundary.precision)
        # By default the kernel may wake a sleeper 50 microseconds late, to spare the battery.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def forward(self, operation: Operation) -> Tensor:
        """Take the time of a forward pass; returns what the stage then sends."""
        wait(self._forward_s[self._stage(operation)])
        return self._sent

    def backward(self, operation: Operation) -> Tensor:
        """Take the time of a backward pass, or of half of it (I and W, as in zb-h1); returns the gradient to send."""
        seconds = self._backward_s[self._stage(operation)]
        wait(seconds if operation.kind == "B" else seconds / 2)
        return self._sent

    def optimizer(self) -> None:
        """Take the time of the optimizer's step."""
        wait(self._optimizer_s)

    def _stage(self, operation: Operation) -> int:
        return operation.chunk * self._num_ranks + self._rank


def wait(seconds: float) -> None:
    """Sleep for so long, exact to some 0.05 ms where a processor is free."""
    until = time.perf_counter() + seconds
    while (left := until - time.perf_counter()) > 0:
        time.sleep(left)


def _seconds(name: str, given: Sequence[float] | None, count: int) -> list[float]:
    if given is None:
        raise ValueError(f"emulation.{name} is empty; give it a time, or launch from the server to have it filled in")
    return [time_ms / 1e3 for time_ms in (given if len(given) > 1 else list(given) * count)]
