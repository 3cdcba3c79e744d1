from typing import Any

from django.db import models
from django.utils import timezone

from .node import QUEUES, Node
from .run import Attempt


class MemberState(models.TextChoices):
    """States of a member, in the only order in which they may follow each other."""

    DISPATCHED = "dispatched"
    PREPARED = "prepared"
    RUNNING = "running"
    FINISHED = "finished"
    OOM = "oom"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    CHECKPOINTED = "checkpointed"
    TIME_LIMIT = "time-limit"
    PREEMPTED = "preempted"

    @property
    def is_final(self) -> bool:
        return self not in ACTIVE_MEMBER_STATES

    @property
    def is_bad_end(self) -> bool:
        """Whether a member that ends like this ends its whole attempt."""
        return self.is_final and self is not MemberState.FINISHED


ACTIVE_MEMBER_STATES = (MemberState.DISPATCHED, MemberState.PREPARED, MemberState.RUNNING)


class Member(models.Model):
    """The share of one node in an attempt."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="members")
    node_rank = models.PositiveIntegerField(default=0, help_text="0 to number of nodes - 1.")
    # Without a node: output that comes from no daemon, for example of a run that a script reports.
    node = models.ForeignKey(Node, models.PROTECT, null=True, blank=True, related_name="members")
    state = models.CharField(max_length=12, choices=MemberState.choices, default=MemberState.DISPATCHED)
    committed = models.BigIntegerField(default=0, help_text="Spool position up to which batches are stored.")
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    assigned_at = models.DateTimeField(default=timezone.now)
    dispatched_at = models.DateTimeField(null=True, blank=True, help_text="Time at which the last order was sent.")
    prepared_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    noticed_at = models.DateTimeField(null=True, blank=True, help_text="When its processes began to be ended.")
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    reason = models.TextField(blank=True)
    traceback = models.TextField(blank=True)
    environment: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, blank=True)
    rendezvous: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, blank=True)
    clock_offset_s = models.FloatField(default=0.0, help_text="Clock of the node minus that of the server's Redis.")
    first_failed_rank = models.PositiveIntegerField(null=True, blank=True)
    is_consequence = models.BooleanField(default=False, help_text="It ended because another member had ended.")
    is_node_fault = models.BooleanField(default=False, help_text="Its node vanished, or the hardware of it failed.")

    class Meta:
        ordering = ["attempt", "node_rank"]
        constraints = [models.UniqueConstraint(fields=["attempt", "node_rank"], name="member_node_rank_once")]
        indexes = [
            models.Index(fields=["state", "lease_expires_at"], name="member_lease"),
            models.Index(fields=["ended_at"], condition=models.Q(is_node_fault=True), name="member_node_fault"),
        ]

    def __str__(self) -> str:
        return f"{self.attempt} on {self.node_name}"

    @property
    def node_name(self) -> str:
        return self.node.name if self.node else f"node {self.node_rank}"

    @property
    def place_name(self) -> str:
        """The machine: the node that Slurm or Kubernetes gave, else the node with the daemon."""
        environment = self.environment if isinstance(self.environment, dict) else {}
        jobs = [job for system in QUEUES if isinstance(job := environment.get(system), dict)]
        return next((str(job["node"]) for job in jobs if job.get("node")), self.node_name)

    @property
    def member_state(self) -> MemberState:
        return MemberState(self.state)

    @property
    def is_active(self) -> bool:
        return not self.member_state.is_final
