from datetime import timedelta

from django.db import models
from django.utils import timezone

from runners.protocol import LEASE_S


class NodeQuerySet(models.QuerySet["Node"]):
    def online(self) -> "NodeQuerySet":
        """Nodes with a heartbeat within the lease."""
        return self.filter(last_heartbeat_at__gte=timezone.now() - timedelta(seconds=LEASE_S))


class Node(models.Model):
    """A machine that runs the daemon; it registers itself with its first heartbeat."""

    name = models.CharField(max_length=120, unique=True)
    pool = models.CharField(max_length=63, default="default")
    is_enabled = models.BooleanField(default=True, help_text="A disabled node finishes its runs but gets no new ones.")
    slots = models.PositiveSmallIntegerField(default=1, help_text="Number of runs at a time.")
    hardware = models.JSONField(default=dict, blank=True)
    daemon_version = models.CharField(max_length=40, blank=True)
    last_heartbeat_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = NodeQuerySet.as_manager()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def is_online(self) -> bool:
        if self.last_heartbeat_at is None:
            return False
        return timezone.now() - self.last_heartbeat_at < timedelta(seconds=LEASE_S)
