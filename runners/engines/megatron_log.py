"""The lines that Megatron-LM prints every so many iterations, so that whatever reads its logs reads ours.

Source: Megatron-LM 2.2, megatron/training.py (training_log) and megatron/utils.py (report_memory).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from runners.config import RunConfig
from runners.engines.megatron_stage import StepResult
from runners.events import Printer

MIB = 2**20
"""What Megatron calls MB."""


class MegatronLog:
    """Adds steps up and prints their means; the last rank speaks, and of memory one rank of each stage, once."""

    def __init__(self, config: RunConfig, printer: Printer, *, speaks: bool, tells_memory: bool) -> None:
        self._config = config
        self._printer = printer
        self._speaks = speaks
        self._tells_memory = tells_memory
        self._results: list[StepResult] = []

    def add(self, step: int, result: StepResult) -> None:
        """Take a step; print where an interval is full. A rest of an interval is never printed, as in Megatron."""
        self._results.append(result)
        if step % self._config.train.log_interval:
            return
        if self._speaks:
            self._printer.log(self._iteration_line(step, result))
            self._printer.log(self._timer_line())
        if self._tells_memory:
            self._tells_memory = False
            peak = max(one.memory_peak_bytes for one in self._results)
            self._printer.log(
                f"[Rank {self._printer.rank}] (after {step} iterations) memory (MB)"
                f" | allocated: {result.memory_bytes / MIB} | max allocated: {peak / MIB}"
            )
        self._results.clear()

    def _iteration_line(self, step: int, result: StepResult) -> str:
        train, results = self._config.train, self._results
        elapsed = sum(one.times.step_time_s for one in results) / len(results)
        cells = [
            f" iteration {step:8d}/{train.iterations:8d}",
            f"consumed samples: {step * train.global_batch_size:12d}",
            f"elapsed time per iteration (ms): {1000 * elapsed:.1f}",
            f"learning rate: {train.learning_rate:.3E}",
            f"global batch size: {train.global_batch_size:5d}",
        ]
        trained = [one for one in results if not one.is_skipped]
        for name in result.losses:
            finite = [one.losses[name] for one in trained if math.isfinite(one.losses[name])]
            if finite:
                cells.append(f"{name} loss: {sum(finite) / len(finite):.6E}")
        cells.append(f"loss scale: {result.loss_scale:.1f}")
        if result.gradient_norm is not None:
            cells.append(f"grad norm: {result.gradient_norm:.3f}")
        nan = sum(any(not math.isfinite(loss) for loss in one.losses.values()) for one in results)
        cells.append(f"number of skipped iterations: {sum(one.is_skipped for one in results):3d}")
        cells.append(f"number of nan iterations: {nan:3d}")
        return " | ".join(cells) + " |"

    def _timer_line(self) -> str:
        sums: dict[str, float] = {}
        for one in self._results:
            for name, seconds in one.times.timers_s.items():
                sums[name] = sums.get(name, 0.0) + seconds
        return "time (ms) | " + " | ".join(f"{name}: {ms:.2f}" for name, ms in self._mean_ms(sums).items())

    def _mean_ms(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {name: 1000 * seconds / len(self._results) for name, seconds in sums.items()}
