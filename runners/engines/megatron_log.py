"""Megatron-LM's periodic log lines, so that readers of its logs also read those of engine megatron.

Source: Megatron-LM 2.2, megatron/training.py (training_log) and megatron/utils.py (report_memory).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from runners.config import RunConfig
from runners.engines.process.events import Printer
from runners.engines.training.megatron_stage import StepResult

MIB = 2**20
"""The unit that Megatron-LM calls MB."""


class MegatronLog:
    """Averages steps over `train.log_interval` and prints the means.

    In Megatron-LM the last rank prints iterations and timers, and one rank per stage prints its memory, once.
    """

    def __init__(self, config: RunConfig, printer: Printer, *, prints_steps: bool, prints_memory: bool) -> None:
        self._config = config
        self._printer = printer
        self._prints_steps = prints_steps
        self._prints_memory = prints_memory
        self._results: list[StepResult] = []

    def add(self, step: int, result: StepResult) -> None:
        """Add a step and print at the end of an interval; as in Megatron-LM an incomplete interval is not printed."""
        self._results.append(result)
        if step % self._config.train.log_interval:
            return
        if self._prints_steps:
            self._printer.log(self._iteration_line(step, result))
            self._printer.log(self._timer_line())
        if self._prints_memory:
            self._prints_memory = False
            peak = max(result.memory_peak_bytes for result in self._results)
            self._printer.log(
                f"[Rank {self._printer.rank}] (after {step} iterations) memory (MB)"
                f" | allocated: {result.memory_bytes / MIB} | max allocated: {peak / MIB}"
            )
        self._results.clear()

    def _iteration_line(self, step: int, result: StepResult) -> str:
        train, results = self._config.train, self._results
        elapsed = sum(entry.times.step_time_s for entry in results) / len(results)
        cells = [
            f" iteration {step:8d}/{train.iterations:8d}",
            f"consumed samples: {step * train.global_batch_size:12d}",
            f"elapsed time per iteration (ms): {1000 * elapsed:.1f}",
            f"learning rate: {train.learning_rate:.3E}",
            f"global batch size: {train.global_batch_size:5d}",
        ]
        trained = [entry for entry in results if not entry.is_skipped]
        for name in result.losses:
            finite = [entry.losses[name] for entry in trained if math.isfinite(entry.losses[name])]
            if finite:
                cells.append(f"{name} loss: {sum(finite) / len(finite):.6E}")
        cells.append(f"loss scale: {result.loss_scale:.1f}")
        if result.gradient_norm is not None:
            cells.append(f"grad norm: {result.gradient_norm:.3f}")
        num_nan = sum(any(not math.isfinite(loss) for loss in entry.losses.values()) for entry in results)
        cells.append(f"number of skipped iterations: {sum(entry.is_skipped for entry in results):3d}")
        cells.append(f"number of nan iterations: {num_nan:3d}")
        return " | ".join(cells) + " |"

    def _timer_line(self) -> str:
        sums: dict[str, float] = {}
        for result in self._results:
            for name, seconds in result.times.timers_s.items():
                sums[name] = sums.get(name, 0.0) + seconds
        return "time (ms) | " + " | ".join(f"{name}: {ms:.2f}" for name, ms in self._mean_ms(sums).items())

    def _mean_ms(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {name: 1000 * seconds / len(self._results) for name, seconds in sums.items()}
