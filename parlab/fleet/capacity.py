"""Resources that a run needs, the free resources of each node, and the choice of nodes."""

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple, Self

from django.db.models import Count

from parlab.lab.models import ACTIVE_MEMBER_STATES, Attempt, Member, Node, Run
from runners.config import engine_of
from runners.config.devices import DEVICES
from runners.config.launchers import LAUNCHERS

DEFAULT_LIMIT_S = 3600.0
START_S = 60.0
"""Seconds that a run may need beyond its limit, to prepare and to end."""


class Need(NamedTuple):
    """Resources that a run needs on each of its nodes."""

    pool: str
    device: str
    ranks: int
    nodes: int
    engine: str
    launcher: str
    argv: tuple[str, ...]
    """Command of an engine that starts another program; empty for others."""
    limit_s: float
    """Time after which the run is stopped at the latest (`launcher.timeout_s`)."""
    shapes: str | None
    """Network interface that the run shapes; empty: that of the run; None: it shapes none."""
    node_names: tuple[str, ...] = ()
    """Nodes that it may use; empty: all of the pool."""
    runtime: str = ""
    """Container runtime; empty: no container."""
    image: str = ""
    measures_health: bool = False
    """It measures the node itself: it takes all slots, and nodes that are left out may take it."""

    @classmethod
    def of(cls, resolved: Mapping[str, Any]) -> Self:
        cluster = resolved["cluster"]
        is_emulated = _is_emulated(resolved)
        return cls(
            pool=cluster["pool"],
            device=cluster["device"],
            ranks=ranks_per_node(resolved),
            nodes=1 if is_emulated else int(cluster.get("nodes") or 1),
            engine=str(resolved.get("parallel", {}).get("engine", "")),
            launcher=str(resolved.get("launcher", {}).get("kind", "")),
            argv=tuple(resolved["command"]["argv"] or ()) if engine_of(resolved).is_external else (),
            limit_s=float(resolved.get("launcher", {}).get("timeout_s") or DEFAULT_LIMIT_S),
            shapes=_shaped_interface(resolved.get("network", {})),
            node_names=tuple(name for name in (cluster.get("node_names") or "").split(",") if name),
            runtime=str(_container(resolved).get("runtime", "")),
            image=str(_container(resolved).get("image", "")),
            measures_health=engine_of(resolved).measures_health,
        )

    @property
    def gpus(self) -> int:
        """GPUs that each node must have; 0 for a run that can also use the CPU."""
        return self.ranks if DEVICES[self.device].needs_gpus else 0


def _container(resolved: Mapping[str, Any]) -> Mapping[str, Any]:
    return resolved.get("launcher", {}).get("container") or {}


def _is_emulated(resolved: Mapping[str, Any]) -> bool:
    """Whether all nodes of a run are namespaces of one machine."""
    return bool(resolved.get("network", {}).get("apply") == "emulate")


def _shaped_interface(network: Mapping[str, Any]) -> str | None:
    return str(network.get("interface") or "") if network.get("apply") == "interface" else None


def ranks_per_node(resolved: Mapping[str, Any]) -> int:
    """Return the number of ranks on each machine that a run uses."""
    cluster = resolved["cluster"]
    nodes = int(cluster.get("nodes") or 1) if _is_emulated(resolved) else 1
    return int(cluster["gpus_per_node"] or 1) * nodes


@dataclass
class Room:
    """A node and its free slots and GPUs."""

    node: Node
    slots: int
    gpus: int
    busy: list[Attempt] = field(default_factory=list)
    reserved_slots: int = 0
    reserved_gpus: int = 0
    reserved_for: list[Run] = field(default_factory=list)
    gap_s: float = 0.0
    """Seconds until the first run with a reservation can start; one that certainly ends before may use the room."""

    @property
    def is_queue(self) -> bool:
        """Whether the node submits runs to a batch system: one slot is a job on any number of nodes."""
        return self.node.is_queue

    def take(self, need: Need) -> None:
        """Subtract the resources of a run."""
        self.slots -= self.slots_of(need)
        self.gpus -= self.gpus_of(need)

    def reserve(self, need: Need, run: Run, gap_s: float) -> None:
        """Keep the resources of a waiting run, which can start in gap_s, from those that came later."""
        self.gap_s = min(self.gap_s, gap_s) if self.reserved_for else gap_s
        self.reserved_for.append(run)
        self.reserved_slots += self.slots_of(need)
        self.reserved_gpus += self.gpus_of(need)

    def slots_of(self, need: Need) -> int:
        return max(self.node.slots, 1) if need.measures_health else 1

    def gpus_of(self, need: Need) -> int:
        if self.is_queue:
            return 0  # the batch system allocates them
        # `auto` uses GPUs only if there are enough of them. Two runs on one GPU would both measure wrong times.
        device = DEVICES[need.device]
        uses_gpus = device.needs_gpus or (device.may_use_gpus and need.ranks <= gpu_count(self.node))
        return need.ranks if uses_gpus else 0

    def could_take(self, need: Need) -> bool:
        """Whether the node can run it once it is free."""
        return (
            self.node.pool == need.pool and gpu_limit(self.node) >= need.gpus and not missing_ability(self.node, need)
        )

    def has_room(self, need: Need) -> bool:
        """Whether slots and GPUs are free, reserved or not."""
        return self.slots >= self.slots_of(need) and self.gpus >= need.gpus

    def fits(self, need: Need) -> bool:
        is_free = (
            self.slots >= self.reserved_slots + self.slots_of(need) and self.gpus - self.reserved_gpus >= need.gpus
        )
        return (is_free or self.fills_gap(need)) and self.could_take(need)

    def fills_gap(self, need: Need) -> bool:
        """Whether a run ends before the resources are needed for the one that reserved them."""
        return self.has_room(need) and need.limit_s + START_S <= self.gap_s

    def free_in_s(self, need: Need, now: datetime) -> float:
        """Return the seconds until there is room, if the runs of the node end as estimated; 0 if there is room now."""
        slots, gpus, waited_s = self.slots, self.gpus, 0.0
        ends = sorted(((remaining_s(attempt, now), attempt) for attempt in self.busy), key=itemgetter(0))
        for left_s, attempt in ends:
            if slots >= self.slots_of(need) and gpus >= need.gpus:
                break
            own = Need.of(attempt.run.resolved)
            slots, gpus, waited_s = slots + self.slots_of(own), gpus + self.gpus_of(own), left_s
        return waited_s

    def device_of(self, need: Need) -> str:
        """Return what ranks of a run use here; the nodes of one run must be alike."""
        if not self.gpus_of(need):
            return ""
        return str(self.node.hardware["gpus"][0].get("name", "GPU"))


def remaining_s(attempt: Attempt, now: datetime) -> float:
    """Estimate how long an attempt will still run: by its steps so far, and at most until its limit."""
    resolved = attempt.run.resolved
    limit_s = Need.of(resolved).limit_s
    if attempt.started_at is None:
        return limit_s
    elapsed_s = (now - attempt.started_at).total_seconds()
    left_s = max(limit_s - elapsed_s, 0.0) + START_S
    iterations = int(resolved.get("train", {}).get("iterations") or 0)
    if attempt.last_step and engine_of(resolved).trains and 0 < attempt.last_step <= iterations:
        left_s = min(left_s, elapsed_s * (iterations / attempt.last_step - 1))
    return left_s


def gpu_count(node: Node) -> int:
    gpus = node.hardware.get("gpus", []) if isinstance(node.hardware, Mapping) else []
    return len(gpus) if isinstance(gpus, list) else 0


def gpu_limit(node: Node) -> int:
    """Return the most GPUs that one machine behind a node has; a cluster of Kubernetes tells in its own words."""
    return sys.maxsize if node.system == "kubernetes" else gpu_count(node)


def missing_ability(node: Node, need: Need) -> str:
    """Return what a node lacks for a run, as a reason with its remedy; empty if it can take the run."""
    if reason := _excluded(node, need):
        return reason
    abilities: Mapping[str, Any] = node.abilities if isinstance(node.abilities, Mapping) else {}
    if not abilities:
        return ""  # its daemon does not report them
    engines, launchers = abilities.get("engines"), abilities.get("launchers")
    if engines and need.engine not in engines:
        return f"node {node.name} has no engine {need.engine}; update its daemon"
    if launchers and need.launcher not in launchers and not node.is_queue:
        return f"node {node.name} has no launcher {need.launcher}; install it there, or choose another launcher.kind"
    launcher = LAUNCHERS.get(need.launcher)
    if need.nodes > 1 and launcher is not None and launcher.spans_slurm_only and abilities.get("kind") != "slurm":
        return (
            f"launcher {need.launcher} starts ranks on several nodes only in a job of Slurm, and node {node.name} is"
            " in none; choose launcher.kind torchrun, deepspeed or mpirun, or a pool whose daemon runs with --slurm"
        )
    if need.shapes is not None and not _may_shape(need.shapes, abilities.get("interfaces") or []):
        name = need.shapes or "INTERFACE"
        return f"node {node.name} allows no run to shape {name}; start its daemon with --shape {name}"
    if reason := _missing_container(node.name, abilities, need):
        return reason
    return _missing_command(node.name, abilities.get("commands") or [], need.argv)


def _excluded(node: Node, need: Need) -> str:
    if need.node_names and node.name not in need.node_names:
        return f"node {node.name} is not in cluster.node_names {','.join(need.node_names)[:80]}"
    if node.left_out and not need.measures_health:
        return f"node {node.name} is left out: {node.left_out[:120]}; put it back on its page"
    return ""


def _may_shape(interface: str, allowed: Sequence[str]) -> bool:
    return interface in allowed if interface else bool(allowed)


def _missing_container(node: str, abilities: Mapping[str, Any], need: Need) -> str:
    if not need.runtime:
        return ""
    images = tuple(abilities.get("images") or ())
    if not need.image.startswith(images):
        choice = f"images that begin with {', '.join(images)}" if images else "no containers"
        return (
            f"node {node} allows {choice}; start its daemon with --images, or choose another launcher.container.image"
        )
    if need.runtime not in abilities.get("containers", ()) and abilities.get("kind") != "slurm":
        choice = ", ".join(abilities.get("containers") or ()) or "none"
        return (
            f"node {node} has no container runtime {need.runtime} (it has {choice}); install it there, or choose"
            " another launcher.container.runtime"
        )
    return ""


def _missing_command(node: str, allowed: Sequence[Sequence[str]], argv: Sequence[str]) -> str:
    if not argv or any(_begins_with(argv, beginning) for beginning in allowed):
        return ""
    if not allowed:
        return f"node {node} allows no commands; start its daemon with PARLAB_ALLOWED_COMMANDS"
    choices = "; ".join(shlex.join(beginning) for beginning in allowed)[:200]
    return f"node {node} does not allow {shlex.join(argv)[:80]}; use a command that begins with: {choices}"


def _begins_with(argv: Sequence[str], beginning: Sequence[str]) -> bool:
    # The node fills {section.field} before it compares.
    pairs = zip(argv, beginning, strict=False)
    return len(argv) >= len(beginning) and all(own == other or "{" in own for own, other in pairs)


def used_slots() -> dict[int, int]:
    """Return the number of slots in use by the id of the node; free nodes are left out."""
    active = Member.objects.filter(state__in=ACTIVE_MEMBER_STATES, node__isnull=False)
    return dict(active.order_by().values_list("node").annotate(Count("pk")))


def rooms(nodes: Iterable[Node]) -> list[Room]:
    """Return the free resources of each node, in one query."""
    by_id = {node.pk: Room(node, node.slots, gpu_limit(node)) for node in nodes}
    members = Member.objects.filter(node__in=by_id, state__in=ACTIVE_MEMBER_STATES)
    for member in members.select_related("attempt__run__experiment").order_by("attempt"):
        assert member.node_id is not None
        room = by_id[member.node_id]
        if room.is_queue and member.node_rank:
            continue  # all members belong to one job
        room.busy.append(member.attempt)
        room.take(Need.of(member.attempt.run.resolved))
    return list(by_id.values())


def best(candidates: Iterable[Room], need: Need) -> list[Room]:
    """Return the nodes with the most free slots that can start a run together; empty if there are not enough."""
    fitting = [room for room in candidates if room.fits(need)]
    return _queue(fitting, need) or _alike([room for room in fitting if not room.is_queue], need)


def reservation(candidates: Iterable[Room], need: Need) -> list[Room]:
    """Return the nodes that will be free for a run first; empty if the pool can never run it."""
    able = [room for room in candidates if room.could_take(need)]
    return _queue(able, need) or _alike([room for room in able if not room.is_queue], need)


def _queue(rooms: Sequence[Room], need: Need) -> list[Room]:
    """Return the node that submits a job for all members of a run; empty if there is none."""
    queues = sorted((room for room in rooms if room.is_queue), key=lambda room: (-room.slots, room.node.name))
    return queues[:1] * need.nodes


def distinct(places: Sequence[Room]) -> list[Room]:
    """Return each node once."""
    return list({room.node.pk: room for room in places}.values())


def _alike(fitting: Sequence[Room], need: Need) -> list[Room]:
    """Return the best nodes of one kind of device, as many as a run needs."""
    groups: dict[str, list[Room]] = {}
    for room in sorted(fitting, key=lambda room: (-room.fits(need), -room.has_room(need), -room.slots, room.node.name)):
        groups.setdefault(room.device_of(need), []).append(room)
    # The first group has the best single node.
    return next((group[: need.nodes] for group in groups.values() if len(group) >= need.nodes), [])
