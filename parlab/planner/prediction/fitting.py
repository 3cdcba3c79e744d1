"""The memory of a job as a distribution, and the probability that it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import erfc, exp, log, sqrt

from parlab.planner.calibration.calibration import Calibration
from parlab.planner.calibration.memory_spreads import usual_memory_spread
from parlab.planner.job.cluster import Cluster
from parlab.planner.job.code_bases import possible_job, possible_jobs
from parlab.planner.job.workload import Job

from .memory import Memory, memory

LIKELY = 0.5
"""Probability from which on a job is said to fit."""
CONFIDENT = 0.95
"""Probability from which on a search offers a layout without a warning."""
_FEW = 5
"""Calibrated memory figures at which the deviation is half that of the calibration, half the usual one."""
_HALF = 0.5 - 1e-9
"""Half of the probability, which sums of weights reach in spite of rounding."""
_WIDEST = 1.0
"""Deviation of a calibration on figures that have nothing to do with the jobs: a factor of e."""
_MEDIAN_TO_DEVIATION = 1.4826
"""Deviation of a normal distribution relative to the median of its absolute errors."""


@dataclass(frozen=True)
class MemoryDistribution:
    """A mixture of log-normal distributions: one for each way in which the code base may use memory."""

    parts: Sequence[tuple[float, float]]
    """Probability and median (bytes) of each."""
    deviation: float
    """Standard deviation of log(memory)."""

    def below(self, limit: float) -> float:
        """Return the probability that a job needs at most `limit` bytes."""
        scale = self.deviation * sqrt(2)
        return sum(weight * 0.5 * erfc(-log(limit / median) / scale) for weight, median in self.parts)

    def quantile(self, share: float) -> float:
        """Return the bytes that a job needs at most with probability `share`."""
        low = min(median for _weight, median in self.parts) * exp(-6 * self.deviation)
        high = max(median for _weight, median in self.parts) * exp(6 * self.deviation)
        for _ in range(20):
            middle = sqrt(low * high)
            low, high = (middle, high) if self.below(middle) < share else (low, middle)
        return high


def possible_memory(job: Job, cluster: Cluster, calibration: Calibration) -> list[tuple[float, Memory]]:
    """Return what a job may need on the GPU that needs most, with the probability of each; by their size.

    A calibration on memory figures has seen the code base, so that only the one that explains them best is possible.
    """
    if calibration.memory_rows:
        seen = possible_job(job, cluster.device.name, calibration.possibility)
        return [(1.0, memory(seen, calibration.memory, cluster.domain))]
    options = possible_jobs(job, cluster.device.name)
    found = [(weight, memory(option, calibration.memory, cluster.domain)) for weight, option in options]
    return sorted(found, key=lambda option: option[1].total_bytes)


def middle(possible: Sequence[tuple[float, Memory]]) -> Memory:
    """Return the possible memory that the median lies in: half of the probability is on those that need less or it."""
    passed = accumulate(weight for weight, _needed in possible)
    return next(needed for share, (_weight, needed) in zip(passed, possible, strict=True) if share >= _HALF)


def memory_distribution(
    job: Job, cluster: Cluster, calibration: Calibration, possible: Sequence[tuple[float, Memory]] | None = None
) -> MemoryDistribution:
    """Return the distribution of the memory on the GPU that needs most; `possible` is what the job may need."""
    found = possible or possible_memory(job, cluster, calibration)
    parts = tuple((weight, needed.total_bytes) for weight, needed in found)
    usual = usual_memory_spread(job, is_cpu=cluster.device.is_cpu)
    if not calibration.memory_rows:
        return MemoryDistribution(parts, usual)
    trust = calibration.memory_rows / (calibration.memory_rows + _FEW)
    own = min(max(_MEDIAN_TO_DEVIATION * calibration.memory_error, 0.01), _WIDEST)
    return MemoryDistribution(parts, sqrt(trust * own**2 + (1 - trust) * usual**2))


def is_confident(job: Job, cluster: Cluster, calibration: Calibration, confidence: float = CONFIDENT) -> bool:
    """Return whether a job fits with at least this probability, without more of its distribution than that needs."""
    limit = limit_bytes(cluster, calibration)
    if calibration.memory_rows:
        return memory_distribution(job, cluster, calibration).below(limit) >= confidence
    deviation = usual_memory_spread(job, is_cpu=cluster.device.is_cpu)
    missing = 0.0
    for weight, option in possible_jobs(job, cluster.device.name):
        median = memory(option, calibration.memory, cluster.domain).total_bytes
        missing += weight - MemoryDistribution(((weight, median),), deviation).below(limit)
        if missing > 1 - confidence:
            return False
    return True


def limit_bytes(cluster: Cluster, calibration: Calibration) -> float:
    """Return the memory of a device that a job may use (bytes)."""
    return cluster.device.memory_bytes * calibration.usable_share
