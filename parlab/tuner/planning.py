"""What the planner says of a setting before anybody ran it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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

    @property
    def nodes(self) -> Sequence[int]:
        """Nodes with the hardware that it speaks of, by primary key."""
        ...

    def plan(self, config: RunConfig) -> Plan: ...


class Unplanned:
    """Says nothing."""

    plans = False
    nodes: Sequence[int] = ()

    def plan(self, config: RunConfig) -> Plan:
        return Plan()


class NodePlanner:
    """Asks the planner, for a node with this hardware; `hardware` is what the node says of itself."""

    plans = True

    def __init__(self, hardware: Mapping[str, Any], nodes: Sequence[int] = ()) -> None:
        self.hardware, self.nodes = hardware, nodes

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
    if node is None:
        return Unplanned()
    alike = [each.pk for each in Node.objects.all() if _devices(each.hardware) == _devices(node.hardware)]
    return NodePlanner(node.hardware, alike)


def _devices(hardware: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the kinds of devices of a node; its processor where it has no GPU."""
    gpus = {str(gpu.get("name", "")) for gpu in hardware.get("gpus") or []}
    return tuple(sorted(gpus)) or (str(hardware.get("cpu_model", "")),)
