"""A prediction: time, memory, what they are made of, and how far they may be off."""

from __future__ import annotations

from dataclasses import dataclass

from runners.config import RunConfig

from .calibration import Calibration, default_for
from .cluster import Cluster
from .configs import job_of
from .memory import Memory, memory
from .timing import Clock, Timing
from .workload import Job


@dataclass(frozen=True)
class Prediction:
    """What one iteration of a job takes on the slowest rank, and its memory on the fullest GPU."""

    job: Job
    cluster: Cluster
    parts: Timing
    memory: Memory
    uncertainty: float
    """Relative error of the time that half of the predictions of this kind stay below."""
    memory_uncertainty: float
    """The same of the memory."""
    fits: bool
    reasons: list[str]
    """Why it does not fit, and what the prediction had to assume."""
    basis: str

    @property
    def iteration_s(self) -> float:
        """Seconds of one iteration."""
        return self.parts.total_s

    @property
    def memory_bytes(self) -> float:
        """Bytes on the fullest GPU."""
        return self.memory.total_bytes

    @property
    def samples_per_s(self) -> float:
        """Sequences per second of all GPUs together."""
        return self.job.global_batch_size / self.iteration_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all GPUs together."""
        return self.job.tokens / self.iteration_s


def predict(config: RunConfig, hardware: Cluster, calibration: Calibration | None = None) -> Prediction:
    """Predict a run of parlab on a cluster; raises ValueError for what no cluster can do."""
    return predict_job(job_of(config), hardware, calibration)


def predict_job(job: Job, cluster: Cluster, calibration: Calibration | None = None) -> Prediction:
    """Predict a job on a cluster; raises ValueError where it has not as many GPUs as the layout needs."""
    known = calibration or default_for(cluster)
    if job.world_size > cluster.gpus:
        raise ValueError(
            f"gpus {cluster.gpus} are too few for tensor {job.tensor_parallel} x pipeline {job.pipeline_parallel} x"
            f" data {job.data_parallel} = {job.world_size}; use {job.world_size} or a smaller layout"
        )
    held = memory(job, known.memory)
    reasons = []
    capacity = cluster.device.memory_bytes
    fits = held.total_bytes <= capacity * known.usable_share
    if not fits:
        reasons.append(
            f"does not fit: needs {held.total_bytes / 2**30:.3g} GiB of {capacity / 2**30:.3g} GiB;"
            f" {largest_part(held)} is the largest part"
        )
    if cluster.is_between_assumed and cluster.nodes > 1:
        reasons.append("bandwidth between nodes is not given: taken as such nodes usually have it")
    return Prediction(
        job,
        cluster,
        Clock(job, cluster, known.time).timing(),
        held,
        known.time_error,
        known.memory_error,
        fits,
        reasons,
        known.basis,
    )


def largest_part(held: Memory) -> str:
    """Name of the largest part of the memory."""
    parts = {name.removesuffix("_bytes"): value for name, value in vars(held).items() if name.endswith("_bytes")}
    return max(parts, key=lambda name: parts[name])
