"""What the planner expects of a configuration on the nodes that would take it."""

from __future__ import annotations

from typing import NamedTuple

from parlab.lab.models import Node
from parlab.planner import Prediction, cluster, predict
from runners.config import RunConfig

DEVICE_OF_PROCESSORS = "CPU"


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

    def device(self, config: RunConfig) -> str:
        """Name the device that a run would get: the pool's GPU, or the processors."""
        pool = config.cluster.pool
        if pool not in self._nodes:
            self._nodes[pool] = list(Node.objects.filter(pool=pool, is_enabled=True))
        if config.cluster.device == "cpu":
            return DEVICE_OF_PROCESSORS
        for node in self._nodes[pool]:
            gpus = node.hardware.get("gpus") or []
            if gpus and (config.cluster.device == "cuda" or len(gpus) >= config.gpus_per_node):
                return str(gpus[0].get("name", ""))
        return DEVICE_OF_PROCESSORS if config.cluster.device == "auto" else ""

    def expected(self, config: RunConfig) -> Expected:
        """Predict a run; say why where that cannot be done."""
        device = self.device(config)
        if not device:
            return Expected(f"no node of pool {config.cluster.pool} has a GPU to predict for")
        try:
            found = predict(config, cluster(device, config.world_size, config.gpus_per_node))
        except ValueError as error:
            return Expected(f"not predicted: {error}")
        return _expected(config, found, device)


def _expected(config: RunConfig, found: Prediction, device: str) -> Expected:
    about = f"on {device}: {found.basis}; half of such predictions are within {found.uncertainty:.0%} of the time"
    note = "; ".join([about, *found.reasons])
    hours = found.iteration_s * config.train.iterations * config.world_size / 3600
    return Expected(note, found.iteration_s, found.memory_bytes, found.fits, hours)
