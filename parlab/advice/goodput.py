"""Goodput: the share of wall time that became lasting progress, over all attempts of a run, and where the rest went.

The parts of an attempt add up to the time between its beginning and its end. Progress is lasting if no later attempt
makes the step again. docs/use/time.md has the definitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FIRST_STEPS = 1
"""Steps of an attempt whose excess over the median is compilation and first allocations."""
GPU_FAILURE_S = 50_000 * 3600.0
"""Of one GPU: 419 unexpected interruptions in 54 days of 16,384 GPUs (Llama 3, arXiv:2407.21783)."""
GPUS = tuple(4**power for power in range(8))
"""1 to 16,384."""


@dataclass(frozen=True)
class Tries:
    """One attempt: Unix seconds, and its steps in the order in which they ended."""

    waited_s: float
    """In the queue, before it started."""
    started_s: float
    ended_s: float
    has_failed: bool
    steps: NDArray[np.int64]
    ends_s: NDArray[np.float64]
    lengths_s: NDArray[np.float64]
    checkpoints_s: float = 0.0
    """In checkpoints inside steps, from timers."""
    last_checkpoint_s: float = 0.0
    """In checkpoints after the last step, such as that of an attempt that was warned of its end."""


FEWEST_FAILURES = 3
"""Failures from which their mean time is measured: with fewer, chance alone makes it several times as long or short."""


class Failures(NamedTuple):
    """How often nodes ended attempts."""

    lost: int
    """Attempts that were lost with a node."""
    gpu_s: float
    """Time of all attempts, added up over their GPUs."""

    @property
    def gpu_every_s(self) -> float:
        """Mean time between failures of one GPU: measured, or with too few failures a published one."""
        return self.gpu_s / self.lost if self.is_measured else GPU_FAILURE_S

    @property
    def is_measured(self) -> bool:
        return self.lost >= FEWEST_FAILURES and self.gpu_s > 0

    @property
    def source(self) -> str:
        """Where the time comes from."""
        if not self.is_measured:
            return "published, because fewer than 3 attempts were lost here"
        return f"measured: {self.lost} attempts were lost in {self.gpu_s / 3600:,.3g} GPU hours"


NO_FAILURES = Failures(0, 0.0)


class Part(NamedTuple):
    """A part of the wall time."""

    key: str
    title: str
    seconds: float


class Goodput(NamedTuple):
    """The parts of the wall time of a run; they add up to it."""

    parts: tuple[Part, ...]
    attempts: int
    failures: int
    trained_s: float
    """Time of the attempts without the queue."""
    lost_steps: int

    @property
    def wall_s(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def share(self) -> float:
        """Share of the wall time that became lasting progress."""
        return self.seconds("progress") / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def failure_every_s(self) -> float | None:
        """Mean time between failures; None without one."""
        return self.trained_s / self.failures if self.failures else None

    def seconds(self, key: str) -> float:
        return sum(part.seconds for part in self.parts if part.key == key)


TITLES = {
    "progress": "Lasting progress",
    "lost": "Steps that were made again",
    "checkpoint": "Checkpoints",
    "compile": "First steps: compilation, first allocations",
    "between": "Between steps: logging, evaluation, batches",
    "startup": "Start-up",
    "silent": "Between the last step and a failure",
    "finish": "After the last step",
    "queue": "Waiting in the queue",
}


def goodput(attempts: Sequence[Tries]) -> Goodput:
    """Split the wall time of the attempts of a run, in their order."""
    seconds = dict.fromkeys(TITLES, 0.0)
    lost_steps = 0
    for number, attempt in enumerate(attempts):
        # A step is lasting if no later attempt begins at or before it.
        later = [int(other.steps.min()) for other in attempts[number + 1 :] if len(other.steps)]
        lost_steps += _add(seconds, attempt, min(later, default=None))
    parts = tuple(Part(key, TITLES[key], value) for key, value in seconds.items())
    trained_s = sum(max(0.0, attempt.ended_s - attempt.started_s) for attempt in attempts)
    return Goodput(parts, len(attempts), sum(attempt.has_failed for attempt in attempts), trained_s, lost_steps)


def _add(seconds: dict[str, float], attempt: Tries, repeated_from: int | None) -> int:
    """Add the parts of an attempt; return the number of its steps that were made again."""
    seconds["queue"] += max(0.0, attempt.waited_s)
    length_s = max(0.0, attempt.ended_s - attempt.started_s)
    after = "silent" if attempt.has_failed else "finish"
    if not len(attempt.steps):
        seconds["silent" if attempt.has_failed else "startup"] += length_s
        return 0
    ends = np.clip(attempt.ends_s, attempt.started_s, attempt.ended_s)
    begins = np.maximum(ends - attempt.lengths_s, attempt.started_s)
    first_s, last_s = float(begins[0]), float(ends[-1])
    seconds["startup"] += first_s - attempt.started_s
    saved_s = min(attempt.last_checkpoint_s, attempt.ended_s - last_s)
    seconds[after] += attempt.ended_s - last_s - saved_s
    lengths = np.minimum(attempt.lengths_s, np.diff(np.append(first_s, ends)))
    usual_s = float(np.median(lengths))
    excess_s = float(np.maximum(lengths[:FIRST_STEPS] - usual_s, 0.0).sum()) if len(lengths) > FIRST_STEPS else 0.0
    checkpoints_s = min(attempt.checkpoints_s, float(lengths.sum()) - excess_s)
    is_lost = attempt.steps >= repeated_from if repeated_from is not None else np.zeros(len(lengths), np.bool_)
    made_s = float(lengths.sum()) - excess_s - checkpoints_s
    lost_s = made_s * float(lengths[is_lost].sum()) / float(lengths.sum()) if lengths.sum() > 0 else 0.0
    seconds["compile"] += excess_s
    seconds["checkpoint"] += checkpoints_s + saved_s
    seconds["lost"] += lost_s
    seconds["progress"] += made_s - lost_s
    seconds["between"] += last_s - first_s - float(lengths.sum())
    return int(is_lost.sum())


class Interval(NamedTuple):
    """The best time between two checkpoints for a number of GPUs."""

    gpus: int
    failure_every_s: float
    young_s: float
    daly_s: float
    lost_share: float
    """Share of the time that checkpoints, repeated steps and restarts take at Daly's interval."""


def young(checkpoint_s: float, failure_every_s: float) -> float:
    """Return the time between checkpoints (s): sqrt(2 C M) (Young 1974)."""
    return sqrt(2 * checkpoint_s * failure_every_s)


def daly(checkpoint_s: float, failure_every_s: float) -> float:
    """Return the time between checkpoints (s) to higher order (Daly 2006, equation 37)."""
    if checkpoint_s >= 2 * failure_every_s:
        return failure_every_s
    ratio = checkpoint_s / (2 * failure_every_s)
    return young(checkpoint_s, failure_every_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - checkpoint_s


def intervals(checkpoint_s: float, gpu_failure_every_s: float, restart_s: float = 0.0) -> list[Interval]:
    """Return the intervals for 1 to 16,384 GPUs that fail independently, each every `gpu_failure_every_s` on average.

    Raises ValueError for a cost or a time that is not above 0.
    """
    for name, value in (("checkpoint_s", checkpoint_s), ("gpu_failure_every_s", gpu_failure_every_s)):
        if not 0 < value < 1e12:
            raise ValueError(f"{name} {value:g} is out of range; use more than 0 and less than 1e12 s")
    rows = []
    for gpus in GPUS:
        every_s = gpu_failure_every_s / gpus
        interval_s = daly(checkpoint_s, every_s)
        rows.append(
            Interval(gpus, every_s, young(checkpoint_s, every_s), interval_s,
                     lost_share(checkpoint_s, every_s, interval_s, restart_s))
        )  # fmt: skip
    return rows


def lost_share(checkpoint_s: float, failure_every_s: float, interval_s: float, restart_s: float = 0.0) -> float:
    """Return the share of wall time without progress (Daly 2006, equation 20: failures at any time, restarts too)."""
    with np.errstate(over="ignore"):
        restarts = np.exp(np.float64(restart_s) / failure_every_s)
        needed = failure_every_s * restarts * np.expm1((np.float64(interval_s) + checkpoint_s) / failure_every_s)
    return float(1 - interval_s / needed) if np.isfinite(needed) else 1.0
