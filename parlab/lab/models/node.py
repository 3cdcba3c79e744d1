import math
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from parlab.lab.models.access.viewer import VisibleManager, VisibleQuerySet
from runners.wire.protocol import LEASE_S

QUEUES = {"slurm": "Slurm", "kubernetes": "Kubernetes"}
"""Batch system, as daemons and environments name it -> its name for people."""


class NodeQuerySet(VisibleQuerySet["Node"]):
    def online(self) -> "NodeQuerySet":
        """Nodes with a heartbeat within the lease."""
        return self.filter(last_heartbeat_at__gte=timezone.now() - timedelta(seconds=LEASE_S))

    def queue_pools(self) -> dict[str, set[str]]:
        """Pools with a daemon that submits runs to a batch system, by the name of the system and of its section."""
        rows = self.filter(Q(hardware__has_key="slurm") | Q(hardware__has_key="kubernetes"))
        pools: dict[str, set[str]] = {system: set() for system in QUEUES}
        for pool, hardware in rows.values_list("pool", "hardware"):
            for system in set(QUEUES) & set(hardware):
                pools[system].add(pool)
        return pools


NodeManager = VisibleManager.from_queryset(NodeQuerySet)


class Node(models.Model):
    """A machine that runs the daemon; it registers itself with its first heartbeat."""

    PROJECT = "pool"

    name = models.CharField(max_length=120, unique=True)
    pool = models.CharField(max_length=63, default="default")
    is_enabled = models.BooleanField(default=True, help_text="A disabled node finishes its runs but gets no new ones.")
    left_out = models.CharField(
        max_length=300, blank=True, help_text="Why it gets only health sweeps; empty: it gets all runs."
    )
    left_out_at = models.DateTimeField(null=True, blank=True)
    slots = models.PositiveSmallIntegerField(default=1, help_text="Number of runs at a time.")
    hardware = models.JSONField(default=dict, blank=True)
    abilities: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, blank=True)
    is_draining = models.BooleanField(default=False, help_text="Its daemon finishes its runs and takes no new ones.")
    lease_s = models.FloatField(null=True, blank=True, help_text="Lease that its daemon asks for; empty: the default.")
    clock: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, blank=True)
    identity = models.CharField(max_length=300, blank=True, help_text="Host and state directory of its daemon.")
    conflict = models.CharField(max_length=300, blank=True, help_text="Another daemon that uses the same name.")
    conflict_at = models.DateTimeField(null=True, blank=True)
    daemon_version = models.CharField(max_length=40, blank=True)
    heartbeat_number = models.BigIntegerField(default=0, help_text="Number of the last heartbeat: numbers rise.")
    last_heartbeat_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = NodeManager()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def is_online(self) -> bool:
        if self.last_heartbeat_at is None:
            return False
        return timezone.now() - self.last_heartbeat_at < timedelta(seconds=LEASE_S)

    @property
    def system(self) -> str:
        """The batch system that its daemon submits runs to, `slurm` or `kubernetes`; empty if they start on it."""
        kind = self.abilities.get("kind") if isinstance(self.abilities, dict) else None
        return kind if kind in QUEUES else ""

    @property
    def is_queue(self) -> bool:
        """Whether its daemon submits runs to a batch system, where they may wait."""
        return bool(self.system)

    @property
    def lease(self) -> timedelta:
        """How long a run on this node stays without a heartbeat."""
        return timedelta(seconds=self.lease_s or settings.LEASE_S)

    @property
    def clock_offset_s(self) -> float:
        """Clock of the node minus that of the server's Redis; 0 if it is not measured."""
        offset = self.clock.get("offset_s") if isinstance(self.clock, dict) else None
        return float(offset) if isinstance(offset, int | float) and math.isfinite(offset) else 0.0

    @property
    def has_conflict(self) -> bool:
        """Whether another daemon used the name of this node within the last minutes."""
        return self.conflict_at is not None and timezone.now() - self.conflict_at < timedelta(seconds=2 * LEASE_S)
