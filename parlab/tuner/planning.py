"""What the planner says of a setting before anybody ran it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from parlab.lab.models import Config, Node
from parlab.planner import predict
from parlab.planner.nodes import cluster_of
from runners.config import RunConfig

logger = logging.getLogger(__name__)

_DOUBTS = 3.0
"""Half of the predictions are off by less than the planner's uncertainty; this many times as much is nearly all."""
_MOST_DOUBT = 0.5


class Plan(NamedTuple):
    """Planned time and memory of a setting; None where nothing is known."""

    iteration_s: float | None = None
    memory_bytes: float | None = None
    memory_limit_bytes: float | None = None
    memory_error: float = 0.06
    """Relative error of `memory_bytes`."""


class Planner(Protocol):
    """Whoever can say something of a configuration."""

    @property
    def plans(self) -> bool:
        """Whether it says anything at all."""
        ...

    def plan(self, config: RunConfig) -> Plan: ...


class Unplanned:
    """Says nothing."""

    plans = False

    def plan(self, config: RunConfig) -> Plan:
        return Plan()


class NodePlanner:
    """Asks the planner, for a node with this hardware; `hardware` is what the node says of itself."""

    plans = True

    def __init__(self, hardware: Mapping[str, Any]) -> None:
        self.hardware = hardware

    def plan(self, config: RunConfig) -> Plan:
        try:
            machines = cluster_of(self.hardware, config)
            found = predict(config, machines)
        except ValueError as problem:
            logger.info("no plan: %s", problem)
            return Plan()
        error = min(_DOUBTS * found.memory_uncertainty, _MOST_DOUBT)
        return Plan(found.iteration_s, found.memory_bytes, float(machines.device.memory_bytes), error)


def planner_for(config: Config) -> Planner:
    """The planner for the nodes of a config's pool; one that says nothing while there is none."""
    pool = config.data.get("cluster", {}).get("pool", "default")
    node = Node.objects.filter(pool=pool, is_enabled=True).exclude(hardware={}).order_by("-last_heartbeat_at").first()
    return Unplanned() if node is None else NodePlanner(node.hardware)
