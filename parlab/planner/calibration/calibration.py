"""Fit the planner's constants to measurements: regularised least squares on logarithms.

A residual is log(predicted/measured). A ridge penalty of its own width (a spring) pulls each constant back to its
start, so that few rows move few constants. Cauchy weights, recomputed in each iteration, reduce the influence of
outliers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parlab.planner.job.cluster import Cluster
from parlab.planner.job.code_bases import is_open, possible_job, possible_jobs, timed_job
from parlab.planner.job.workload import Job
from parlab.planner.prediction.memory import memory, needed_bytes, outside_bytes
from parlab.planner.prediction.parameters import (
    MemoryParameters,
    TimeParameters,
    as_vector,
    from_vector,
    limits,
    names,
    widths,
)
from parlab.planner.prediction.timing import Clock

from .levels import LEVELS, Levels
from .recorded_formulas import Batch, Formula
from .residuals import Residuals

Vector = npt.NDArray[np.float64]
_FEWEST_MEMORIES = 3
"""With fewer memory figures the memory constants are not fitted."""
_LEAST, _MOST = 0.85, 1.1
"""Range of `usable_share`: a limit outside it would mean that the prediction itself is wrong."""
NOISE = 0.03
"""Expected relative error of an ordinary measurement."""
CODE_BASES = 0.02
"""Deviation of the factors by which code bases differ, for fits to several of them."""
SPRING = 1.0
"""Scale of the widths of the springs: at 1, a spring of width 1 allows a change by a factor of e at little cost."""


@dataclass(frozen=True)
class Observation:
    """Measured time (s) and memory (bytes) of one job; None where not measured."""

    job: Job
    cluster: Cluster
    iteration_s: float | None = None
    memory_bytes: float | None = None
    is_oom: bool = False
    is_allocated: bool = False
    """The memory is that of torch's allocator: without the context of the device and the buffers of NCCL."""


@dataclass(frozen=True)
class Calibration:
    """Fitted constants, the number of rows behind them, and their error on these rows (median of |relative error|)."""

    name: str
    time: TimeParameters = field(default_factory=TimeParameters)
    memory: MemoryParameters = field(default_factory=MemoryParameters)
    time_rows: int = 0
    memory_rows: int = 0
    oom_rows: int = 0
    """Jobs that ran out of memory; they determine `usable_share`."""
    time_error: float = 0.073
    memory_error: float = 0.026
    possibility: int | None = None
    """Index of the possible code base (`code_bases.possible_jobs`) that explains the memory figures best; None: the
    jobs as they are stated."""
    usable_share: float = 0.985
    """Share of the device's memory up to which a prediction counts as fitting: drivers reserve the rest (a V100 of 16
    GiB reports 16,160 MiB, an A100 of 80 GiB 81,251 MiB)."""
    time_spread: float = 0.25
    """Relative error of the time that 80 % of such predictions stay within."""
    most_gpus: int = 0
    """Most GPUs of a measured time, 0 without one; larger jobs are predicted closer to the shipped constants."""
    local: Residuals | None = None
    """What the constants leave unexplained near measured jobs; None without measured times."""
    levels: Levels = field(default_factory=dict, hash=False)
    """Effects of code bases and their releases on the time; a calibration on runs includes that of its own."""
    cost: float = 0.0
    """Objective of the time fit at its minimum, for comparing fits to the same rows."""

    @property
    def basis(self) -> str:
        """Describe where the constants come from."""
        counts = [
            (self.time_rows, "time", "times"),
            (self.memory_rows, "memory figure", "memory figures"),
            (self.oom_rows, "job out of memory", "jobs out of memory"),
        ]
        parts = [f"{count} {singular if count == 1 else plural}" for count, singular, plural in counts if count]
        return f"calibrated on {self.name}: {', '.join(parts)}" if parts else f"not calibrated: {self.name}"


DEFAULT = Calibration("constants of docs/understand/planner.md", levels=LEVELS)
"""For a GPU cluster without measurements."""


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
"""For processes on a CPU without measurements: no device context, small buffers. The speed of their matrix products is
unknown until a run has finished."""


def default_for(cluster: Cluster) -> Calibration:
    """Return the constants for a cluster without measurements."""
    return CPU_DEFAULT if cluster.device.is_cpu else DEFAULT


def calibrate(
    observations: Sequence[Observation],
    name: str = "runs",
    start: Calibration | None = None,
    weights: Sequence[float] | None = None,
    noise: float = NOISE,
    spring: float = SPRING,
    code_bases: Sequence[str] | None = None,
    deviation: float = CODE_BASES,
) -> Calibration:
    """Fit the constants to observations of one cluster and family, starting from `start`.

    `start` defaults to the constants for the device of the first observation; without observations it is returned
    unchanged. `weights` holds the weight of each observation, 1 by default. `noise` is the expected relative error of
    the measurements. `spring` scales the widths of the springs (`parameters.WIDTHS`). `code_bases` names the code base
    of each observation if there are several; each may differ from the constants by a factor of its own, of `deviation`,
    and none is guessed from the memory.
    """
    if start is None:
        start = default_for(observations[0].cluster) if observations else DEFAULT
    row_weights = weights or [1.0] * len(observations)
    rows = list(zip(observations, row_weights, code_bases or [""] * len(observations), strict=True))
    fitted = replace(start, name=name, time_rows=0, memory_rows=0, oom_rows=sum(row.is_oom for row in observations))
    times = [
        _Sample(row, weight, row.iteration_s, _time_formula(row.job, row.cluster), code_base)
        for row, weight, code_base in rows
        if row.iteration_s is not None and row.iteration_s > 0
    ]
    if times:
        # With fewer rows than constants the rows do not determine all constants, so the springs become stiffer.
        width = spring * min(1.0, (len(times) / len(as_vector(start.time))) ** 0.5)
        fitted = _with_time(fitted, start, times, _solution(times, start.time, noise, width, deviation))
    figures = [
        (row, weight, row.memory_bytes)
        for row, weight, _code_base in rows
        if row.memory_bytes is not None and row.memory_bytes > 0
    ]
    if len(figures) >= _FEWEST_MEMORIES:
        fits = {
            index: _solution(_sizes(figures, index), start.memory, noise, spring, deviation)
            for index in ([None] if code_bases else _possibilities(observations))
        }
        index = min(fits, key=lambda each: fits[each].cost)
        fitted = replace(_with_memory(fitted, start, fits[index]), possibility=index)
    return replace(fitted, usable_share=_usable_share(observations, fitted))


class _Sample(NamedTuple):
    """A measured value with the formula that predicts it."""

    observation: Observation
    weight: float
    value: float
    formula: Formula
    code_base: str


class _Solution(NamedTuple):
    """Logarithms of the fitted constants, the remaining residuals of the samples, and the minimum of the objective."""

    vector: Vector
    residuals: Vector
    cost: float


def _possibilities(observations: Sequence[Observation]) -> list[int | None]:
    """Return the indices of the code bases that the jobs may have: only the jobs as stated if that is known."""
    counts = [len(possible_jobs(row.job, row.cluster.device.name)) for row in observations if is_open(row.job)]
    return [None, *range(max(counts, default=0))]


def _sizes(figures: Sequence[tuple[Observation, float, float]], index: int | None) -> list[_Sample]:
    """Return the memory figures of jobs with the formulas of a possible code base."""
    samples = []
    for row, weight, size in figures:
        job = possible_job(row.job, row.cluster.device.name, index)
        samples.append(_Sample(row, weight, size, _memory_formula(job, row.cluster.domain, row.is_allocated), ""))
    return samples


def _solution(
    samples: Sequence[_Sample],
    initial: TimeParameters | MemoryParameters,
    noise: float,
    spring: float,
    deviation: float,
) -> _Solution:
    """Fit the constants of one model to its samples."""
    batch = Batch([sample.formula for sample in samples])
    measured = np.log([sample.value for sample in samples])

    weights = np.array([sample.weight for sample in samples])
    common = _common_share([sample.code_base for sample in samples], weights, noise, deviation)

    def residuals(points: Vector) -> Vector:
        errors = np.log(batch.values(np.exp(points))) - measured
        return errors - errors @ common

    vector, cost = _fit(residuals, initial, weights, noise, spring)
    return _Solution(vector, residuals(vector[None])[0], cost)


def _common_share(code_bases: Sequence[str], weights: Vector, noise: float, deviation: float) -> Vector:
    """Return the matrix that takes from each residual a part of the mean of its code base.

    Code bases differ by factors of their own, of a `deviation`: an error that all rows of one have in common
    determines the constants less than its many rows suggest (a mixed model with random intercepts).
    """
    labels = np.array(code_bases)
    shares = np.zeros((len(labels), len(labels)))
    for label in set(code_bases) - {""}:
        members = labels == label
        total = float(weights[members].sum())
        damping = (noise**2 / total / (deviation**2 + noise**2 / total)) ** 0.5
        shares[np.ix_(members, members)] = (1 - damping) * (weights[members] / total)[:, None]
    return shares


def _with_time(fitted: Calibration, start: Calibration, samples: Sequence[_Sample], solution: _Solution) -> Calibration:
    jobs = tuple(sample.observation.job for sample in samples)
    local = Residuals(jobs, tuple(solution.residuals))
    return replace(
        fitted,
        time=from_vector(start.time, solution.vector),
        time_rows=len(samples),
        time_error=_error(local.left_out(), start.time_error),
        time_spread=_spread(local.left_out(), start.time_spread),
        local=local,
        most_gpus=max(job.world_size for job in jobs),
        cost=solution.cost,
    )


def _with_memory(fitted: Calibration, start: Calibration, solution: _Solution) -> Calibration:
    return replace(
        fitted,
        memory=from_vector(start.memory, solution.vector),
        memory_rows=len(solution.residuals),
        memory_error=_error(solution.residuals, start.memory_error),
    )


def _usable_share(observations: Sequence[Observation], fitted: Calibration) -> float:
    """Return the usable share of the memory that separates jobs that ran from jobs that ran out of memory.

    The share lies below every job that ran out of memory and, as far as that allows, above every job that ran.
    """

    def needed_share(row: Observation) -> float:
        job = possible_job(row.job, row.cluster.device.name, fitted.possibility)
        return memory(job, fitted.memory, row.cluster.domain).total_bytes / row.cluster.device.memory_bytes

    share = max([fitted.usable_share, *(min(needed_share(row), _MOST) for row in observations if not row.is_oom)])
    return max(_LEAST, min([share, *(0.99 * needed_share(row) for row in observations if row.is_oom)]))


def _error(residuals: Vector, prior: float) -> float:
    """Return the median of |relative error|; `prior`, the error before the fit, counts as one row."""
    errors = np.abs(np.expm1(residuals))
    return float((np.median(errors) * len(errors) + prior) / (len(errors) + 1))


def _spread(residuals: Vector, prior: float) -> float:
    """Return the relative error that 80 % of other rows stay within; few rows count less than the prior.

    The constants are fitted to the rows, which makes their errors smaller than those of other rows: of n + 1 equal
    rows, the next one lies within the ceil(0.9 (n + 1))-th smallest.
    """
    errors = np.sort(np.expm1(np.abs(residuals)))
    index = min(len(errors), int(np.ceil(0.9 * (len(errors) + 1)))) - 1
    weight = len(errors) / (len(errors) + 5)
    return float(weight * errors[index] + (1 - weight) * prior)


def shrunk(calibration: Calibration, gpus: int, shipped: Calibration) -> Calibration:
    """Return the calibration for a job of `gpus` GPUs, closer to the shipped constants beyond the measured range.

    The logarithms of the constants are averaged; the weight of the calibration halves when the GPUs double.
    """
    if not calibration.most_gpus or gpus <= calibration.most_gpus:
        return calibration
    weight = calibration.most_gpus / gpus
    vector = weight * as_vector(calibration.time) + (1 - weight) * as_vector(shipped.time)
    return replace(
        calibration,
        time=from_vector(shipped.time, vector),
        time_error=max(calibration.time_error, shipped.time_error),
    )


def _fit(
    residuals: Callable[[Vector], Vector],
    initial: TimeParameters | MemoryParameters,
    row_weights: Vector,
    noise: float,
    spring: float,
) -> tuple[Vector, float]:
    """Minimise Cauchy-weighted residuals plus springs by Levenberg-Marquardt, each constant below its limit.

    `residuals` maps points of logarithms of the constants to residuals, points x constants to points x rows.

    Returns the logarithms of the constants and the minimum of the objective.
    """
    start, upper = as_vector(initial), limits(type(initial))
    width = spring * widths(type(initial))

    def cost(scaled: Vector, vector: Vector) -> float:
        return float(np.sum(row_weights * np.log1p(scaled**2)) + np.sum(((vector - start) / width) ** 2))

    vector, damping = start.copy(), 1e-2
    scaled = residuals(vector[None])[0] / noise
    best = cost(scaled, vector)
    for _ in range(25):
        slopes = _slopes(residuals, vector, scaled, noise)
        weights = row_weights / (1 + scaled**2)
        normal = slopes.T @ (slopes * weights[:, None]) + np.diag(1 / width**2)
        gradient = slopes.T @ (weights * scaled) + (vector - start) / width**2
        last = best
        for _ in range(8):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            candidate = np.minimum(vector + np.clip(step, -1, 1), upper)
            candidate_scaled = residuals(candidate[None])[0] / noise
            candidate_cost = cost(candidate_scaled, candidate)
            if candidate_cost < best:
                vector, scaled, best, damping = candidate, candidate_scaled, candidate_cost, max(damping / 3, 1e-6)
                break
            damping *= 4
        if last - best <= 1e-4 * last:
            break
    return vector, best


def _slopes(residuals: Callable[[Vector], Vector], vector: Vector, scaled: Vector, noise: float) -> Vector:
    """Return the Jacobian of the scaled residuals by forward differences: rows x constants."""
    width = 1e-3
    moved = vector + width * np.eye(len(vector))
    return (residuals(moved) / noise - scaled).T / width


@lru_cache(maxsize=4096)
def _time_formula(job: Job, cluster: Cluster) -> Formula:
    """Return the time of an iteration as a formula of the time constants."""
    timed = timed_job(job, cluster.device.name)

    def seconds(values: list[Any]) -> Any:
        constants = TimeParameters(**dict(zip(names(TimeParameters), values, strict=True)))
        return Clock(timed, cluster, constants).timing().total_s

    return Formula(len(names(TimeParameters)), seconds)


@lru_cache(maxsize=4096)
def _memory_formula(job: Job, domain: int, is_allocated: bool) -> Formula:
    """Return the memory of the GPU that needs most as a formula of the memory constants."""

    def size(values: list[Any]) -> Any:
        constants = MemoryParameters(**dict(zip(names(MemoryParameters), values, strict=True)))
        needed = needed_bytes(job, constants, domain)
        return needed - outside_bytes(job, constants, domain) if is_allocated else needed

    return Formula(len(names(MemoryParameters)), size)
