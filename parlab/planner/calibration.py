"""Fit the planner's constants to measurements, by least squares on logarithms that is held near what it starts from.

A residual is log(predicted/measured). Each constant is drawn back to where it started with a spring of its own width
(ridge), so that few rows move few constants, and a row that lies far off counts less (Cauchy weights, iterated).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from .cluster import Cluster
from .memory import memory
from .parameters import MemoryParameters, TimeParameters, as_vector, from_vector, limits, widths
from .timing import Clock
from .workload import Job

Vector = npt.NDArray[np.float64]
_FEWEST_MEMORIES = 3
"""Fewer memory figures leave the constants of the memory as they are."""
_LEAST, _MOST = 0.85, 1.1
"""A border farther from the capacity of the device would say that the prediction is wrong, not where the border is."""
NOISE = 0.03
"""Relative error of a measurement that is as good as its neighbours'."""
SPRING = 1.0
"""Scale of the springs' widths: where theirs is 1, a constant may move by a factor of e without much ado."""


@dataclass(frozen=True)
class Observation:
    """What one job was measured to take; None for what was not measured."""

    job: Job
    cluster: Cluster
    iteration_s: float | None = None
    memory_bytes: float | None = None
    is_oom: bool = False


@dataclass(frozen=True)
class Calibration:
    """Constants, what they were fitted to, and how far off they are there (median of |relative error|)."""

    name: str
    time: TimeParameters = field(default_factory=TimeParameters)
    memory: MemoryParameters = field(default_factory=MemoryParameters)
    time_rows: int = 0
    memory_rows: int = 0
    oom_rows: int = 0
    """Jobs that ran out of memory: they teach where the border is."""
    time_error: float = 0.108
    memory_error: float = 0.048
    usable_share: float = 0.985
    """Share of the device's memory that jobs may be predicted to need and still run: drivers keep some (a V100 of 16
    GiB shows 16,160 MiB, an A100 of 80 GiB 81,251 MiB)."""
    cost: float = 0.0
    """What the fit of the times made as small as it could; to compare fits to the same rows."""

    @property
    def basis(self) -> str:
        """What a prediction says of where its constants come from."""
        counts = [
            (self.time_rows, "time", "times"),
            (self.memory_rows, "memory figure", "memory figures"),
            (self.oom_rows, "job out of memory", "jobs out of memory"),
        ]
        words = [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
        return f"calibrated on {self.name}: {', '.join(words)}" if words else f"not calibrated: {self.name}"


DEFAULT = Calibration("constants of docs/planner.md")
"""For a cluster of GPUs of which nothing was measured."""


CPU_DEFAULT = Calibration(
    "constants for processes on a CPU",
    TimeParameters(
        matmul_efficiency=0.6,
        host_s=2e-4,
        inside_efficiency=0.5,
        between_efficiency=0.5,
        step_s=5e-3,
        sharded_efficiency=0.3,
        matmul_traffic=1.5,
    ),
    MemoryParameters(flat_factor=1.0, bucket_values=1e7, communicator_bytes=2e7, overhead_bytes=3.5e8),
    time_error=0.4,
    memory_error=0.3,
)
"""The same for processes on a CPU: no context of a device, small buffers; what their matrix products reach is unknown
until something ran."""


def default_for(cluster: Cluster) -> Calibration:
    """The constants for a cluster of which nothing was measured."""
    return CPU_DEFAULT if cluster.device.is_cpu else DEFAULT


def calibrate(
    observations: Sequence[Observation],
    name: str = "runs",
    start: Calibration | None = None,
    weights: Sequence[float] | None = None,
    noise: float = NOISE,
    spring: float = SPRING,
) -> Calibration:
    """Fit the constants to observations of one cluster and family, beginning at `start`; no observations: `start`.

    `start` is the default of the first observation's device unless given. `weights` say how many rows each one counts
    as; None: one. `noise` is the relative error that measurements of one cluster, or of several, are expected to have
    beside the formulas, `spring` how far constants may move, against their widths (`parameters.WIDTHS`).
    """
    if start is None:
        start = default_for(observations[0].cluster) if observations else DEFAULT
    counts = dict(zip(map(id, observations), weights or [1.0] * len(observations), strict=True))
    times = [one for one in observations if one.iteration_s and one.iteration_s > 0]
    memories = [one for one in observations if one.memory_bytes and one.memory_bytes > 0]
    ran_out = sum(one.is_oom for one in observations)
    fitted = replace(start, name=name, time_rows=len(times), memory_rows=0, oom_rows=ran_out)
    if times:
        measured = np.log([one.iteration_s or 1.0 for one in times])

        def time_residuals(vector: Vector) -> Vector:
            constants = from_vector(start.time, vector)
            return np.log([Clock(one.job, one.cluster, constants).timing().total_s for one in times]) - measured

        # Fewer rows than constants leave some of these to the springs, which are then the stiffer the fewer they are.
        width = spring * min(1.0, (len(times) / len(as_vector(start.time))) ** 0.5)
        vector, cost = _fit(time_residuals, start.time, np.array([counts[id(one)] for one in times]), noise, width)
        error = _error(time_residuals(vector), start.time_error)
        fitted = replace(fitted, time=from_vector(start.time, vector), time_error=error, cost=cost)
    if len(memories) >= _FEWEST_MEMORIES:
        held = np.log([one.memory_bytes or 1.0 for one in memories])

        def memory_residuals(vector: Vector) -> Vector:
            constants = from_vector(start.memory, vector)
            return np.log([memory(one.job, constants).total_bytes for one in memories]) - held

        vector, _cost = _fit(
            memory_residuals, start.memory, np.array([counts[id(one)] for one in memories]), noise, spring
        )
        error = _error(memory_residuals(vector), start.memory_error)
        constants = from_vector(start.memory, vector)
        fitted = replace(fitted, memory=constants, memory_rows=len(memories), memory_error=error)
    return replace(fitted, usable_share=_usable_share(observations, fitted))


def _usable_share(observations: Sequence[Observation], fitted: Calibration) -> float:
    """What jobs that ran, and jobs that ran out of memory, teach of the border between them.

    It lies below every job that ran out of memory; where none lies in between, above every job that ran.
    """

    def needed(one: Observation) -> float:
        return memory(one.job, fitted.memory).total_bytes / one.cluster.device.memory_bytes

    share = max([fitted.usable_share, *(min(needed(one), _MOST) for one in observations if not one.is_oom)])
    return max(_LEAST, min([share, *(0.99 * needed(one) for one in observations if one.is_oom)]))


def _error(residuals: Vector, before: float) -> float:
    """Median of |relative error|; with few rows the figure from before counts too, as one row would."""
    errors = np.abs(np.expm1(residuals))
    return float((np.median(errors) * len(errors) + before) / (len(errors) + 1))


def _fit(
    residuals: Callable[[Vector], Vector],
    before: TimeParameters | MemoryParameters,
    counts: Vector,
    noise: float,
    spring: float,
) -> tuple[Vector, float]:
    """Levenberg-Marquardt on Cauchy-weighted residuals and the springs, no constant above its limit."""
    start, most = as_vector(before), limits(type(before))
    width = spring * widths(type(before))

    def cost(scaled: Vector, vector: Vector) -> float:
        return float(np.sum(counts * np.log1p(scaled**2)) + np.sum(((vector - start) / width) ** 2))

    vector, damping = start.copy(), 1e-2
    scaled = residuals(vector) / noise
    best = cost(scaled, vector)
    for _ in range(25):
        slopes = _slopes(residuals, vector, scaled, noise)
        weights = counts / (1 + scaled**2)
        normal = slopes.T @ (slopes * weights[:, None]) + np.diag(1 / width**2)
        gradient = slopes.T @ (weights * scaled) + (vector - start) / width**2
        last = best
        for _ in range(8):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            tried = np.minimum(vector + np.clip(step, -1, 1), most)
            tried_scaled = residuals(tried) / noise
            tried_cost = cost(tried_scaled, tried)
            if tried_cost < best:
                vector, scaled, best, damping = tried, tried_scaled, tried_cost, max(damping / 3, 1e-6)
                break
            damping *= 4
        if last - best <= 1e-4 * last:
            break
    return vector, best


def _slopes(residuals: Callable[[Vector], Vector], vector: Vector, scaled: Vector, noise: float) -> Vector:
    width = 1e-3
    columns = []
    for index in range(len(vector)):
        moved = vector.copy()
        moved[index] += width
        columns.append((residuals(moved) / noise - scaled) / width)
    return np.stack(columns, axis=1)
