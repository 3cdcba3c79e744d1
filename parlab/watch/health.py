"""Health sweeps of nodes: a watch per node, and one per link between neighbouring nodes of a pool.

A sweep is a run of engine health that is alone on its nodes. Its results are searched for changes like those of any
other watch, so a slow GPU or cable is an alert.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from parlab.fleet.capacity import Need, gpu_count, missing_ability
from parlab.fleet.excluded_nodes import node_leave_out
from parlab.lab.models import Exclusion, Experiment, Node, Project
from parlab.lab.models.access.viewer import shared_project_id
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from runners.config import ConfigError, RunConfig
from runners.config.devices import CPU, CUDA
from runners.config.engines import HEALTH

from .causes import slow_end
from .detecting import sentence_of
from .models import Alert, Order, Watch
from .ordering import order_place
from .schedules import time_of_day

logger = logging.getLogger(__name__)

EXPERIMENT = "Node health"
CPU_RANKS = 2
JOIN_SWEEPS = 3
"""Sweeps of a node that joins: a single one says little about its noise."""
FIRST_HOUR, HOURS = 1, 4
"""The hours (UTC) among which daily sweeps are distributed, so that not all nodes are measured at once."""
LEAVE_OUT_SHARE = 0.1
"""Loss of a rate from which a node is left out, if parlab may do so by itself."""


def sweeps_check() -> None:
    """Create the watches of nodes that have joined and of links to their neighbours, and order their first sweeps."""
    if not settings.HEALTH_SWEEPS:
        return
    user = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    if user is None:
        return  # before the first administrator nobody can own the runs
    nodes = sweepable()
    for node in nodes:
        node_watch(node=node, user=user)
    for ends in neighbours(nodes):
        node_watch(node=ends[0], peer=ends[1], user=user)


def sweepable() -> list[Node]:
    """Return the nodes that are online and can run a health sweep."""
    return [node for node in Node.objects.online().filter(is_enabled=True) if can_sweep(node)]


def can_sweep(node: Node) -> bool:
    """Whether a node can run a health sweep: it has torch and a launcher, and is no queue of Slurm."""
    if node.is_queue or not node.abilities:
        return False
    return not missing_ability(node, Need.of(RunConfig.model_validate(sweep_data([node])).resolved()))


def neighbours(nodes: Iterable[Node]) -> list[tuple[Node, Node]]:
    """Return each node of a pool with the next one like it, in a ring; of two nodes one pair."""
    alike: dict[tuple[str, bool], list[Node]] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        alike.setdefault((node.pool, bool(gpu_count(node))), []).append(node)
    pairs = []
    for ring in alike.values():
        following = [*ring[1:], *ring[:1]] if len(ring) > 2 else ring[1:]
        pairs += list(zip(ring, following, strict=False))
    return pairs


def sweep_data(nodes: Sequence[Node]) -> dict[str, Any]:
    """Return the configuration of a sweep of one node, or of the link between two."""
    gpus = gpu_count(nodes[0])
    ranks = len(nodes) if len(nodes) > 1 else gpus or CPU_RANKS
    return {
        "parallel": {"engine": HEALTH.name, "data_parallel_size": ranks},
        "train": {"iterations": 6, "warmup_steps": 1},
        "cluster": {
            "pool": nodes[0].pool,
            "nodes": len(nodes),
            "node_names": ",".join(node.name for node in nodes),
            "device": CUDA.name if gpus else CPU.name,
        },
        "launcher": {"timeout_s": 600},
    }


def node_watch(*, node: Node, user: User, peer: Node | None = None) -> Watch | None:
    """Return the watch of a node, or of its link to another one; a new one orders its first sweeps.

    Its configuration follows the number of GPUs. None if the node has a name that no configuration can contain.
    """
    watch = Watch.objects.filter(node=node, peer=peer).select_related("config__experiment").first()
    data = sweep_data([node, peer] if peer else [node])
    try:
        if watch is None:
            return _created(node, peer, data, user)
        if watch.config is not None and _differs(watch.config.data, data):
            config = config_save(
                experiment=watch.config.experiment, data=data, sweep={}, note=watch.name, user=user, as_next=True
            )
            Watch.objects.filter(pk=watch.pk).update(config=config)
            watch.config = config
    except (ConfigError, ValueError) as error:
        logger.warning("no health sweep of node %s: %s", node.name, error)
        return None
    return watch


def _differs(stored: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    return any(
        stored.get(section, {}).get(name) != value
        for section in ("parallel", "cluster")
        for name, value in data[section].items()
    )


@transaction.atomic
def _created(node: Node, peer: Node | None, data: dict[str, Any], user: User) -> Watch:
    name = f"Link of {node.name} and {peer.name}" if peer else f"Health of {node.name}"
    shared = Project.objects.get(pk=shared_project_id())
    experiment = Experiment.objects.filter(name=EXPERIMENT, project=shared).first() or experiment_create(
        project=shared,
        name=EXPERIMENT,
        question="Is a device or a cable slower than it was?",
        notes="Health sweeps of all nodes, one version of the configuration per node and per link; see page Watch.",
        owner=user,
    )
    config = config_save(experiment=experiment, data=data, sweep={}, note=name, user=user, as_next=True)
    key = f"node:{node.name}" + (f":{peer.name}" if peer else "")
    watch, is_new = Watch.objects.get_or_create(
        key=key,
        project=shared,
        defaults={
            "name": name[:120], "config": config, "node": node, "peer": peer,
            "schedule": Watch.Schedule.DAILY, "next_at": night_time(key, timezone.now()), "on_node_change": True,
            "created_by": user,
        },
    )  # fmt: skip
    if is_new:
        order_place(watch=watch, count=JOIN_SWEEPS, reason="node joined")
    return watch


def night_time(key: str, now: datetime) -> datetime:
    """Return when the daily sweep comes first: at a time of the night that follows from the name."""
    minute = zlib.crc32(key.encode()) % (HOURS * 60)
    return time_of_day(FIRST_HOUR + minute // 60, minute % 60, now)


def sweep_order(*, node: Node, user: User) -> list[Order]:
    """Order a sweep of a node and of its links now; raise ValueError if it cannot run one."""
    if not node.is_online:
        raise ValueError(f"node {node.name} is offline; start its daemon")
    if not can_sweep(node):
        raise ValueError(
            f"node {node.name} cannot run engine {HEALTH.name} with torchrun; install torch there and update its daemon"
        )
    own = node_watch(node=node, user=user)
    if own is None:
        raise ValueError(f"the name of node {node.name} is invalid in cluster.node_names; use letters, digits and -._")
    for ends in neighbours(sweepable()):
        if node in ends:
            node_watch(node=ends[0], peer=ends[1], user=user)
    watches = [own, *Watch.objects.filter(node=node).exclude(peer=None), *Watch.objects.filter(peer=node)]
    possible = [watch for watch in watches if is_possible(watch)]
    # The first sweeps of a node that has just joined are a sweep by hand, too.
    return [
        watch.orders.filter(state=Order.State.OPEN).first()
        or order_place(watch=watch, count=1, reason="by hand", user=user)
        for watch in possible
    ]


def is_possible(watch: Watch) -> bool:
    """Whether the nodes of a health watch are online; other watches can always order runs."""
    return all(node is None or node.is_online for node in (watch.node, watch.peer))


def alert_follow(*, alert: Alert) -> bool:
    """Leave a node out that has become slower, if the setting allows it; return whether it was left out.

    A slow link is that of a node only if its other links are slow, too.
    """
    watch, part = alert.watch, alert.largest
    if not settings.LEAVE_OUT_NODES or not alert.is_worse or not part or abs(part["size"]) < LEAVE_OUT_SHARE:
        return False
    node = watch.node if watch.peer is None else slow_end(alert)
    return node is not None and node_leave_out(
        node=node, reason=sentence_of(alert), by="PARLAB_LEAVE_OUT_NODES", cause=Exclusion.Cause.SPEED
    )
