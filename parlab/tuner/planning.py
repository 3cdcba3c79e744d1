"""Predictions of the planner for settings that have not run yet."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from parlab.lab.models import Config, Node
from parlab.planner import predict
from parlab.planner.job.nodes import cluster_of
from runners.config import RunConfig

logger = logging.getLogger(__name__)

_TENTHS = 2.563
"""Standard deviations between the first and the last tenth of a normal distribution."""


class Plan(NamedTuple):
    """Planned time and memory of a setting; None if there is no prediction."""

    iteration_s: float | None = None
    memory_bytes: float | None = None
    memory_limit_bytes: float | None = None
    memory_deviation: float = 0.036
    """Standard deviation of the logarithm of the memory."""


class Planner(Protocol):
    """Predicts configurations."""

    @property
    def plans(self) -> bool:
        """Whether it makes predictions."""
        ...

    @property
    def nodes(self) -> Sequence[int]:
        """Primary keys of the nodes with the hardware of the predictions."""
        ...

    def plan(self, config: RunConfig) -> Plan: ...


class Unplanned:
    """Makes no predictions."""

    plans = False
    nodes: Sequence[int] = ()

    def plan(self, config: RunConfig) -> Plan:
        return Plan()


class NodePlanner:
    """Calls the planner for a node with this hardware, as the node describes itself."""

    plans = True

    def __init__(self, hardware: Mapping[str, Any], nodes: Sequence[int] = ()) -> None:
        self.hardware, self.nodes = hardware, nodes

    def plan(self, config: RunConfig) -> Plan:
        try:
            machines = cluster_of(self.hardware, config)
            prediction = predict(config, machines)
        except ValueError as problem:
            logger.info("no plan: %s", problem)
            return Plan()
        needed = prediction.distribution
        deviation = math.log(needed.quantile(0.9) / needed.quantile(0.1)) / _TENTHS
        limit = float(machines.device.memory_bytes)
        return Plan(prediction.iteration_s, needed.quantile(0.5), limit, deviation)


def planner_for(config: Config) -> Planner:
    """Return the planner for the nodes of a configuration's pool; Unplanned if it has no nodes."""
    pool = config.data.get("cluster", {}).get("pool", "default")
    node = Node.objects.filter(pool=pool, is_enabled=True).exclude(hardware={}).order_by("-last_heartbeat_at").first()
    if node is None:
        return Unplanned()
    alike = [other.pk for other in Node.objects.all() if _devices(other.hardware) == _devices(node.hardware)]
    return NodePlanner(node.hardware, alike)


def _devices(hardware: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a node's types of GPUs, or of its processor if it has none."""
    gpus = {str(gpu.get("name", "")) for gpu in hardware.get("gpus") or []}
    return tuple(sorted(gpus)) or (str(hardware.get("cpu_model", "")),)
