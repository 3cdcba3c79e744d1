"""What the planner expects of a configuration on the nodes that would take it."""

from __future__ import annotations

from typing import NamedTuple

from parlab.lab.models import Node
from parlab.planner import predict
from parlab.planner.nodes import cluster_of
from runners.config import RunConfig


class Expected(NamedTuple):
    """A prediction as a table shows it; the numbers are None where there is none."""

    note: str
    """What it stands on and how far it may be off, or why there is none."""
    step_time_s: float | None = None
    memory_bytes: float | None = None
    fits: bool = True
    gpu_hours: float | None = None
    """Of all iterations on all GPUs."""


class Pools:
    """Remembers what the nodes of each pool are, so that a sweep asks the database once."""

    def __init__(self) -> None:
        self._nodes: dict[str, list[Node]] = {}

    def expected(self, config: RunConfig) -> Expected:
        """Predict a run on the node of its pool that would suit it best; say why where that cannot be done."""
        pool = config.cluster.pool
        if pool not in self._nodes:
            self._nodes[pool] = list(Node.objects.filter(pool=pool, is_enabled=True))
        node = max(self._nodes[pool], key=lambda node: len(node.hardware.get("gpus") or []), default=None)
        if node is None:
            return Expected(f"not predicted: no node of pool {pool} has shown itself yet")
        try:
            where = cluster_of(node.hardware, config, node.name)
            found = predict(config, where)
        except ValueError as error:
            return Expected(f"not predicted: {error}")
        about = f"On {where.device.name} of {node.name}: {found.basis}."
        off = f"Half of such predictions are within {found.uncertainty:.0%} of the time."
        hours = found.iteration_s * config.train.iterations * config.world_size / 3600
        note = " ".join([about, off, *found.reasons])
        return Expected(note, found.iteration_s, found.memory_bytes, found.fits, hours)
