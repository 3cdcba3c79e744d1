"""Predict time and memory of a job with their parts and uncertainties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp

from parlab.planner.calibration.calibration import Calibration, default_for, shrunk
from parlab.planner.calibration.levels import level_of, narrowed
from parlab.planner.calibration.spreads import usual_spread
from parlab.planner.job.cluster import Cluster
from parlab.planner.job.code_bases import timed_job
from parlab.planner.job.configs import job_of
from parlab.planner.job.hardware import Gpu
from parlab.planner.job.practice import in_units_of
from parlab.planner.job.workload import Job, Precision
from runners.config import RunConfig

from .fitting import CONFIDENT, LIKELY, MemoryDistribution, limit_bytes, memory_distribution, middle, possible_memory
from .job_flops import flops_of
from .memory import Memory
from .simulated import NOTE, has_largest_first_stage, with_simulated_bubble
from .timing import Clock, Timing, scaled

_FEW = 5
"""Calibrated times at which the width of an interval is half that of the calibration, half the uncalibrated one."""
_SIXTEEN_BITS = {"bf16": "fp16", "fp16": "bf16"}
_FAR = 0.9
"""Novelty above which a prediction says that no similar job was measured."""


@dataclass(frozen=True)
class Prediction:
    """Time of one iteration on the slowest rank, and memory on the GPU that needs most."""

    job: Job
    cluster: Cluster
    parts: Timing
    memory: Memory
    uncertainty: float
    """Median relative error of the time of such predictions."""
    spread: float
    """Relative error that 80 % of such predictions of the time stay within."""
    memory_uncertainty: float
    """Median relative error of the memory of such predictions."""
    fits_probability: float
    """Probability that the job does not run out of memory."""
    distribution: MemoryDistribution
    """Distribution of the memory on the GPU that needs most."""
    reasons: list[str]
    """Why the job does not fit, and which values were assumed."""
    basis: str
    """Which calibration the constants come from."""

    @property
    def iteration_s(self) -> float:
        """Time of one iteration (s)."""
        return self.parts.total_s

    @property
    def memory_bytes(self) -> float:
        """Memory on the GPU that needs most (bytes)."""
        return self.memory.total_bytes

    @property
    def fits(self) -> bool:
        """Whether the job is more likely to fit than to run out of memory."""
        return self.fits_probability >= LIKELY

    @property
    def samples_per_s(self) -> float:
        """Sequences per second, all GPUs together."""
        return self.job.global_batch_size / self.iteration_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, all GPUs together."""
        return self.job.tokens / self.iteration_s


def predict(config: RunConfig, hardware: Cluster, calibration: Calibration | None = None) -> Prediction:
    """Predict a run of a configuration on a cluster. Raises ValueError if it cannot be planned or run there."""
    return predict_job(job_of(config, hardware.device.name), hardware, calibration)


def predict_job(job: Job, cluster: Cluster, calibration: Calibration | None = None) -> Prediction:
    """Predict a job on a cluster. Raises ValueError if the cluster has fewer GPUs than the layout needs."""
    shipped = default_for(cluster)
    constants = shrunk(calibration, job.world_size, shipped) if calibration else shipped
    if job.world_size > cluster.gpus:
        context = f" x context {job.context_parallel}" if job.context_parallel > 1 else ""
        raise ValueError(
            f"gpus {cluster.gpus} are too few for tensor {job.tensor_parallel} x pipeline {job.pipeline_parallel} x"
            f" data {job.data_parallel}{context} = {job.world_size}; use {job.world_size} or a smaller layout"
        )
    asked, job = job.precision, in_units_of(job, cluster.device)
    possible = possible_memory(job, cluster, constants)
    needed, distribution = middle(possible), memory_distribution(job, cluster, constants, possible)
    probability = distribution.below(limit_bytes(cluster, constants))
    reasons = []
    if probability < CONFIDENT:
        reasons.append(_shortage(needed, distribution, cluster, probability))
    reasons += _other_precision(asked, job.precision, cluster.device)
    if calibration and 0 < calibration.most_gpus < job.world_size:
        reasons.append(
            f"outside the calibrated range of at most {calibration.most_gpus} GPUs: constants are closer to the shipped"
            " ones and the uncertainty is larger"
        )
    if cluster.is_between_assumed and cluster.nodes > 1:
        reasons.append("bandwidth between nodes is not specified: the usual value for such nodes is assumed")
    clock = Clock(timed_job(job, cluster.device.name), cluster, constants.time)
    parts = clock.timing()
    if has_largest_first_stage(job):
        parts = with_simulated_bubble(clock, parts)
        reasons.append(NOTE)
    if job.code_base and job.release and (job.code_base, job.release) not in constants.levels:
        reasons.append(
            f"release {job.release} of {job.code_base} was not measured: the effect of its other releases is used"
        )
    level = level_of(constants.levels, job.code_base, job.release)
    spread = narrowed(usual_spread(job, cluster, parts.total_s), level)
    if constants.local is None:
        parts = scaled(parts, exp(level.shift))
    else:
        factor, novelty = constants.local.at(job)
        novelty = max(novelty, 1 - constants.most_gpus / job.world_size)
        parts = scaled(parts, factor)
        trust = (1 - novelty) * constants.time_rows / (constants.time_rows + _FEW)
        spread = _mixed(constants.time_spread, max(constants.time_spread, spread), 1 - trust)
        if novelty > _FAR:
            reasons.append("differs from all calibrated jobs: the uncertainty is that of uncalibrated predictions")
    floor_s = _floor_s(job, cluster)
    if parts.total_s < floor_s:
        parts = scaled(parts, floor_s / parts.total_s)
        reasons.append("the calibration implies more than the peak FLOP/s: the time at the peak is used")
    return Prediction(
        job,
        cluster,
        parts,
        needed,
        constants.time_error,
        spread,
        constants.memory_error,
        probability,
        distribution,
        reasons,
        constants.basis,
    )


def _other_precision(asked: Precision, used: Precision, gpu: Gpu) -> Iterator[str]:
    """Generate a reason if a device lacks units for the precision of a job."""
    if used != asked:
        yield f"precision {asked} is not supported by {gpu.name}: {used} is used"
    elif used in _SIXTEEN_BITS and gpu.peak(used) is None:
        yield f"precision {used} is not supported by {gpu.name}: the speed of {_SIXTEEN_BITS[used]} is used"


def _shortage(needed: Memory, distribution: MemoryDistribution, cluster: Cluster, probability: float) -> str:
    """Return the reason of a job that may run out of memory."""
    middle, capacity = distribution.quantile(0.5) / 2**30, cluster.device.memory_bytes / 2**30
    return (
        f"{'may' if probability >= LIKELY else 'does'} not fit: needs {middle:.3g} GiB of {capacity:.3g} GiB,"
        f" {probability:.0%} likely to fit; {largest_part(needed)} is the largest part"
    )


def _floor_s(job: Job, cluster: Cluster) -> float:
    """Return the time of the executed FLOPs at the peak of all devices (s); 0 without a peak."""
    peak = cluster.device.peak(job.precision)
    if peak is None or cluster.device.is_cpu:
        return 0.0
    return flops_of(job)[1] / (job.world_size * peak.flops_per_s)


def _mixed(near: float, far: float, novelty: float) -> float:
    """Return the width of an interval between that near calibrated jobs and that far away from them."""
    return float((near**2 * (1 - novelty) + far**2 * novelty) ** 0.5)


def largest_part(needed: Memory) -> str:
    """Return the name of the largest part of the memory."""
    parts = {name.removesuffix("_bytes"): value for name, value in vars(needed).items() if name.endswith("_bytes")}
    return max(parts, key=lambda name: parts[name])
