"""Resources that a run needs, and the free resources of each node."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from parlab.lab.models import Attempt, Node
from runners.config.devices import DEVICES
from runners.protocol import RunState

ON_NODE = (RunState.DISPATCHED, RunState.RUNNING)


class Need(NamedTuple):
    """Resources that a run needs on a node."""

    pool: str
    device: str
    ranks: int

    @classmethod
    def of(cls, cluster: Mapping[str, Any]) -> Self:
        return cls(cluster["pool"], cluster["device"], cluster["gpus_per_node"])

    @property
    def gpus(self) -> int:
        """GPUs that the node must have; 0 for a run that can also use the CPU."""
        return self.ranks if DEVICES[self.device].needs_gpus else 0


@dataclass
class Room:
    """A node and its free slots and GPUs."""

    node: Node
    slots: int
    gpus: int
    busy: list[Attempt] = field(default_factory=list)

    def take(self, need: Need) -> None:
        """Subtract the resources of a run."""
        self.slots -= 1
        # `auto` uses GPUs only if there are enough of them. Two runs on one GPU would both measure wrong times.
        device = DEVICES[need.device]
        if device.needs_gpus or (device.may_use_gpus and need.ranks <= gpu_count(self.node)):
            self.gpus -= need.ranks

    def fits(self, need: Need) -> bool:
        return self.node.pool == need.pool and self.slots > 0 and self.gpus >= need.gpus


def gpu_count(node: Node) -> int:
    gpus = node.hardware.get("gpus", []) if isinstance(node.hardware, Mapping) else []
    return len(gpus) if isinstance(gpus, list) else 0


def rooms(nodes: Iterable[Node]) -> list[Room]:
    """Return the free resources of each node, in one query."""
    by_id = {node.pk: Room(node, node.slots, gpu_count(node)) for node in nodes}
    attempts = Attempt.objects.filter(node__in=by_id, state__in=ON_NODE).select_related("run__experiment")
    for attempt in attempts.order_by("pk"):
        assert attempt.node_id is not None
        room = by_id[attempt.node_id]
        room.busy.append(attempt)
        room.take(Need.of(attempt.run.resolved["cluster"]))
    return list(by_id.values())


def best(candidates: Iterable[Room], need: Need) -> Room | None:
    """Return the node with the most free slots that the run fits on."""
    fitting = [room for room in candidates if room.fits(need)]
    return min(fitting, key=lambda room: (-room.slots, room.node.name)) if fitting else None
