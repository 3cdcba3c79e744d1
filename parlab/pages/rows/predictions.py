"""Predictions of configurations on the nodes of their pool."""

from __future__ import annotations

from typing import NamedTuple

from parlab.lab.models import DevicePrice, Node
from parlab.planner import predict
from parlab.planner.calibration.coverage import warnings
from parlab.planner.job.nodes import cluster_of
from runners.config import RunConfig


class Expected(NamedTuple):
    """A prediction for a table; numbers are None if there is no prediction."""

    note: str
    """Basis and uncertainty of the prediction, or why there is none."""
    step_time_s: float | None = None
    memory_bytes: float | None = None
    fits: bool = True
    fits_probability: float | None = None
    """Probability that it does not run out of memory; None without a prediction."""
    gpu_hours: float | None = None
    """For all iterations on all GPUs."""
    cost: float | None = None
    """Of these hours, in the currency of the catalogue; None if the device has no price there."""


class Pools:
    """Cache of the nodes of each pool, so that the points of a sweep share one query."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[Node]] = {}
        self._prices: dict[str, float] | None = None

    def expected(self, config: RunConfig) -> Expected:
        """Predict a run on the node of its pool with the most GPUs, or explain why that is not possible."""
        pool = config.cluster.pool
        if pool not in self._nodes:
            self._nodes[pool] = list(Node.objects.filter(pool=pool, is_enabled=True))
        node = max(self._nodes[pool], key=lambda node: len(node.hardware.get("gpus") or []), default=None)
        if node is None:
            return Expected(f"not predicted: pool {pool} has no node")
        try:
            where = cluster_of(node.hardware, config, node.name)
            prediction = predict(config, where)
        except ValueError as error:
            return Expected(f"not predicted: {error}")
        basis = f"On {where.device.name} of {node.name}: {prediction.basis}."
        uncertainty = f"Half of such predictions are within {prediction.uncertainty:.0%} of the measured time."
        hours = prediction.iteration_s * config.train.iterations * config.world_size / 3600
        # The range of validation is one of GPUs.
        outside = [] if where.device.is_cpu else list(warnings(prediction.job, where.device))
        note = " ".join([basis, uncertainty, *prediction.reasons, *outside])
        price = self._price(where.device.name)
        cost = None if price is None else price * hours
        return Expected(
            note,
            prediction.iteration_s,
            prediction.memory_bytes,
            prediction.fits,
            prediction.fits_probability,
            hours,
            cost,
        )

    def _price(self, device: str) -> float | None:
        if self._prices is None:
            priced = DevicePrice.objects.order_by("-offer").values_list("device__name", "per_hour")
            self._prices = {name: float(price) for name, price in priced}
        return self._prices.get(device)
