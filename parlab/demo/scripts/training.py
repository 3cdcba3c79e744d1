"""A training small enough for every start of a demo: logistic regression by gradient descent, on the processor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

SETTINGS = {"learning_rate": 0.5, "per_device_train_batch_size": 256, "max_steps": 60, "world_size": 1}
SAMPLES, FEATURES = 20_000, 64


class Step(NamedTuple):
    number: int
    loss: float
    samples_per_s: float
    step_time_ms: float


def steps(*, seed: int) -> Iterator[Step]:
    """Train and yield every step; each seed has other data."""
    generator = np.random.default_rng(seed)
    truth = generator.normal(size=FEATURES)
    inputs = generator.normal(size=(SAMPLES, FEATURES))
    labels = (inputs @ truth + generator.normal(size=SAMPLES) > 0).astype(float)
    weights = np.zeros(FEATURES)
    batch = int(SETTINGS["per_device_train_batch_size"])
    for number in range(1, int(SETTINGS["max_steps"]) + 1):
        began = time.perf_counter()
        rows = generator.integers(0, SAMPLES, size=batch)
        predicted = 1 / (1 + np.exp(-inputs[rows] @ weights))
        loss = -np.mean(np.log(np.where(labels[rows] > 0, predicted, 1 - predicted) + 1e-12))
        weights -= SETTINGS["learning_rate"] * inputs[rows].T @ (predicted - labels[rows]) / batch
        time.sleep(0.005)  # reading the next batch
        took_s = time.perf_counter() - began
        yield Step(number, float(loss), batch / took_s, took_s * 1000)
