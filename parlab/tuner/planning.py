"""What the planner says of a setting before anybody ran it."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple, Protocol

from parlab.lab.models import Config, Node
from parlab.planner import Cluster, cluster, predict
from parlab.planner.hardware import Gpu
from runners.config import RunConfig

logger = logging.getLogger(__name__)

_CORE_FLOPS = 5e10
_CORE_BANDWIDTH = 1e10
_MOST_RANKS = 64
"""Processes on one CPU are not bound to cores; a study may ask for more of them than there are."""
_DOUBTS = 3.0
"""Half of the predictions are off by less than the planner's uncertainty; this many times as much is nearly all."""
_CPU_MEMORY_ERROR = 0.5
"""Processes on a CPU hold Python, torch and what an allocator keeps back: only the coarse size is planned."""


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
    """Knows the memory limit of a run, and nothing else."""

    plans = False

    def plan(self, config: RunConfig) -> Plan:
        limit = config.launcher.memory_limit_mib
        return Plan(memory_limit_bytes=None if limit is None else limit * 2**20)


class NodePlanner:
    """Asks the planner, for the machines that the runs would be given to."""

    plans = True

    def __init__(self, machines: Cluster) -> None:
        self.machines = machines
        self.is_cpu = machines.device.name.startswith("CPU")

    def plan(self, config: RunConfig) -> Plan:
        try:
            found = predict(config, self.machines)
        except ValueError as problem:
            logger.info("no plan: %s", problem)
            return Unplanned().plan(config)
        limit = Unplanned().plan(config).memory_limit_bytes
        if self.is_cpu:
            return Plan(found.iteration_s, found.memory_bytes, limit, _CPU_MEMORY_ERROR)
        error = _DOUBTS * found.memory_uncertainty
        return Plan(found.iteration_s, found.memory_bytes, float(self.machines.device.memory_bytes), error)


def planner_for(config: Config) -> Planner:
    """The planner for the nodes of a config's pool; one that says nothing where no node is known that it could plan."""
    wanted = config.data.get("cluster", {})
    for node in Node.objects.filter(pool=wanted.get("pool", "default"), is_enabled=True).order_by("-last_heartbeat_at"):
        machines = _machines(node.hardware, wanted.get("device", "auto"))
        if machines is not None:
            return NodePlanner(machines)
    return Unplanned()


def _cpu(hardware: dict[str, Any], cores: int) -> Gpu:
    """One process on a CPU as a device of the planner; only the shape of its times counts, not their scale."""
    memory = int(hardware.get("memory_bytes") or 2**33)
    peaks = dict.fromkeys(("fp32", "bf16", "fp16"), _CORE_FLOPS)
    return Gpu(f"CPU, {cores} cores", memory, peaks, _CORE_BANDWIDTH, "a core as servers have them")


def _machines(hardware: dict[str, Any], device: str) -> Cluster | None:
    gpus = [] if device == "cpu" else hardware.get("gpus") or []
    try:
        if gpus:
            return cluster(str(gpus[0].get("name", "")), len(gpus), len(gpus))
        cores = int(hardware.get("cpu_cores") or 1)
        return None if device == "cuda" else cluster(_cpu(hardware, cores), _MOST_RANKS, _MOST_RANKS)
    except (ValueError, AttributeError) as problem:
        logger.info("node cannot be planned: %s", problem)
        return None
