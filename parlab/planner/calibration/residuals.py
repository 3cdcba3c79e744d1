"""What the constants of a calibration leave unexplained near measured jobs, and how near a job is to them.

A Gaussian process on log(predicted/measured) over the sizes of a job (Rasmussen and Williams 2006, chapter 2). Close to
measured jobs it corrects the prediction; far from them the correction vanishes and `novelty` tends to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from parlab.planner.job.workload import Job

Vector = npt.NDArray[np.float64]
_DEVIATION = 0.1
"""Usual size of what the constants leave unexplained (log)."""
_NOISE = 0.06
"""Relative error of one measurement."""
_LENGTH = 2.0
"""Distance of jobs at which their residuals have little in common: one size differs by a factor of 2^2."""
_OUTLIER = 0.15
"""Residual at which a row counts half."""
_RECOMPUTES = ("none", "selective", "operations", "full")


def _position(job: Job) -> Vector:
    """Return the sizes of a job as base-2 logarithms."""
    sizes = [
        job.tensor_parallel,
        job.pipeline_parallel,
        job.replicas,
        job.micro_batch_size,
        job.num_micro_batches,
        job.model.hidden_size,
        job.model.num_layers,
        job.model.sequence_length,
        job.model.num_experts,
    ]
    return np.array([*np.log2(sizes), 2.0 * _RECOMPUTES.index(job.recompute)], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Residuals:
    """The measured jobs of a calibration and log(predicted/measured) of each."""

    jobs: tuple[Job, ...]
    errors: tuple[float, ...]

    @cached_property
    def _positions(self) -> Vector:
        return np.array([_position(job) for job in self.jobs], dtype=np.float64)

    @cached_property
    def _inverse(self) -> Vector:
        """The inverse of the covariance of the measured rows; an outlier has more noise."""
        errors = np.array(self.errors)
        noise = _NOISE**2 * (1 + (errors / _OUTLIER) ** 2)
        return np.asarray(np.linalg.inv(self._covariance(self._positions) + np.diag(noise)), dtype=np.float64)

    def _covariance(self, positions: Vector) -> Vector:
        distances = ((positions[:, None] - self._positions[None]) ** 2).sum(axis=-1)
        covariance: Vector = _DEVIATION**2 * np.exp(-distances / (2 * _LENGTH**2))
        return covariance

    @cached_property
    def _weights(self) -> Vector:
        weights: Vector = self._inverse @ np.array(self.errors)
        return weights

    def at(self, job: Job) -> tuple[float, float]:
        """Return the factor that corrects a predicted time, and the novelty of the job (0: measured, 1: far away)."""
        near = self._covariance(_position(job)[None])[0]
        novelty = 1 - float(near @ self._inverse @ near) / _DEVIATION**2
        return float(np.exp(-near @ self._weights)), min(1.0, max(0.0, novelty))

    def left_out(self) -> Vector:
        """Return the error of each row if its residual is predicted from the others (log)."""
        errors: Vector = self._weights / np.diag(self._inverse)
        return errors
