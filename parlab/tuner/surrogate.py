"""Predictions for untried settings: those of the planner, corrected by the measurements.

A Gaussian process over the logarithm of measured over planned value (Rasmussen and Williams, Gaussian Processes for
Machine Learning, 2006, chapter 2). Its parts have a physical meaning: one scale for all settings (the cluster is
slower than planned), a trend along each feature (micro batches cost more than planned), and a smooth remainder.
Without measurements it returns the planner's predictions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_SCALE = 1.0
"""The planner may be wrong by a factor of e for a cluster without measurements."""
_TREND = 0.15
"""Relative error per step of a feature."""
_LEAST_NOISE = 0.004
_ENOUGH = 300
"""Measurements from which the shape is estimated; more do not change it, and the cost grows with their cube."""


class Shape(NamedTuple):
    """The smooth remainder: its size as a relative error, and its reach in steps of a feature."""

    size: float = 0.2
    reach: float = 1.5


SHAPES = [Shape(size, reach) for size in (0.03, 0.08, 0.2, 0.5) for reach in (0.7, 1.0, 1.5, 3.0)]


class Prediction(NamedTuple):
    """Logarithm of the value of each of k candidates: expected value and standard deviation; shapes (k)."""

    mean: Array
    deviation: Array


class Measured(NamedTuple):
    """Measurements: features (n, d), logarithms of measured over planned value (n), relative errors (n)."""

    features: Array
    residuals: Array
    noise: Array


def likeliest_shape(measured: Measured) -> Shape:
    """Return the remainder with the largest likelihood of the measurements; the default with fewer than three."""
    if len(measured.residuals) < 3:
        return Shape()
    every = max(1, math.ceil(len(measured.residuals) / _ENOUGH))
    sample = Measured(measured.features[::every], measured.residuals[::every], measured.noise[::every])
    return max(SHAPES, key=lambda shape: _evidence(sample, shape))


def predict(measured: Measured, features: Array, prior: Array, shape: Shape) -> Prediction:
    """Predict the log values of candidates with these features (k, d) and planned log values (k)."""
    own = _SCALE**2 + _TREND**2 * (features**2).sum(axis=1) + shape.size**2
    if not len(measured.residuals):
        return Prediction(prior, np.sqrt(own))
    factor = np.linalg.cholesky(_covariance_of(measured, shape))
    cross = _covariance(features, measured.features, shape)
    weights = np.linalg.solve(factor.T, np.linalg.solve(factor, measured.residuals))
    half = np.linalg.solve(factor, cross.T)
    return Prediction(prior + cross @ weights, np.sqrt(np.maximum(own - (half**2).sum(axis=0), 1e-12)))


def expected_gain(prediction: Prediction, best_log: float) -> Array:
    """Return the expected relative improvement over the best so far, per candidate (Jones et al. 1998, equation 15)."""
    deviation = np.maximum(prediction.deviation, 1e-9)
    z = (prediction.mean - best_log) / deviation
    cumulative = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in z])
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    gain: Array = deviation * (z * cumulative + density)
    return gain


def rows(features: Sequence[Sequence[float]], dimensions: int) -> Array:
    """Return features as an array (n, dimensions); n may be 0."""
    return np.asarray(features, dtype=np.float64).reshape(len(features), dimensions)


def _covariance(left: Array, right: Array, shape: Shape) -> Array:
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :]
    product = left @ right.T
    near = np.exp(-0.5 * np.maximum(squares - 2 * product, 0) / shape.reach**2)
    result: Array = _SCALE**2 + _TREND**2 * product + shape.size**2 * near
    return result


def _covariance_of(measured: Measured, shape: Shape) -> Array:
    noise = np.maximum(measured.noise, _LEAST_NOISE) ** 2
    result: Array = _covariance(measured.features, measured.features, shape) + np.diag(noise)
    return result


def _evidence(measured: Measured, shape: Shape) -> float:
    factor = np.linalg.cholesky(_covariance_of(measured, shape))
    half = np.linalg.solve(factor, measured.residuals)
    return float(-0.5 * half @ half - np.log(np.diag(factor)).sum())
