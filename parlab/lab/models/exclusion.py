from django.db import models
from django.db.models import Q
from django.utils import timezone

from .node import Node


class ExclusionQuerySet(models.QuerySet["Exclusion"]):
    def open(self) -> "ExclusionQuerySet":
        return self.filter(ended_at=None)

    def of_hosts(self) -> "ExclusionQuerySet":
        """Those of compute nodes of Slurm."""
        return self.exclude(host="")


class Exclusion(models.Model):
    """A time in which a node, or a compute node of its Slurm, gets no runs. It is reached through its node."""

    class Cause(models.TextChoices):
        ATTEMPTS = "attempts", "it ended attempts"
        HEALTH = "health", "a health check"
        PERSON = "person", "a person"
        SPEED = "speed", "a rate of its sweeps"

    node = models.ForeignKey(Node, models.CASCADE, related_name="exclusions")
    host = models.CharField(max_length=120, blank=True, help_text="Compute node of Slurm; empty: the node itself.")
    cause = models.CharField(max_length=8, choices=Cause, default=Cause.PERSON)
    reason = models.CharField(max_length=300)
    faults: "models.JSONField[list[str]]" = models.JSONField(
        default=list, blank=True, help_text="Faults of its hardware then: the same ones exclude it only once."
    )
    at = models.DateTimeField(default=timezone.now)
    until = models.DateTimeField(null=True, blank=True, help_text="When it ends by itself; empty: never.")
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=150, blank=True, help_text="Who ended it; empty: its time was over.")

    objects = ExclusionQuerySet.as_manager()

    class Meta:
        ordering = ["-at"]
        constraints = [
            models.UniqueConstraint(fields=["node", "host"], condition=Q(ended_at=None), name="exclusion_open_once"),
        ]

    def __str__(self) -> str:
        return f"{self.place_name}: {self.reason}"

    @property
    def place_name(self) -> str:
        return self.host or self.node.name
