from typing import Any

from django.conf import settings
from django.db import models
from django.urls import reverse

from runners.protocol import ACTIVE_STATES, FINAL_STATES, RunState

from .config import Config
from .experiment import Experiment
from .node import Node
from .source import Source

STATE_CHOICES = [(state.value, state.value) for state in RunState]


class RunQuerySet(models.QuerySet["Run"]):
    def active(self) -> "RunQuerySet":
        return self.filter(state__in=ACTIVE_STATES)

    def final(self) -> "RunQuerySet":
        return self.filter(state__in=FINAL_STATES)


class Run(models.Model):
    """One point of a sweep: a chain of attempts, of which the last one counts.

    `state`, `reason`, `summary` and the headline numbers are those of the current attempt. They are
    changed only by conditional updates in `lab.services`.
    """

    class Origin(models.TextChoices):
        MEASURED = "measured", "measured by parlab"
        PUBLISHED = "published", "published figures, entered as data"
        IMPORTED = "imported", "imported from a file"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="runs")
    # Not PROTECT: an experiment goes with its configs and their runs, a used config alone does not.
    config = models.ForeignKey(Config, models.RESTRICT, related_name="runs")
    number = models.PositiveIntegerField(help_text="Counts within the experiment.")
    label = models.CharField(max_length=300, blank=True)
    origin = models.CharField(max_length=12, choices=Origin, default=Origin.MEASURED)
    point = models.JSONField(default=dict, help_text="Axis values of this point.")
    point_digest = models.CharField(max_length=64)
    resolved = models.JSONField(
        help_text="The full RunConfig, no field left to a default; of an imported run only what its source says."
    )
    source = models.ForeignKey(Source, models.CASCADE, null=True, blank=True, related_name="runs")
    place: "models.JSONField[dict[str, int]]" = models.JSONField(
        default=dict, blank=True, help_text="Which part of its source it is: segment, or table with row and column."
    )
    first_line = models.BigIntegerField(null=True, blank=True, help_text="Where it stands in its source.")
    last_line = models.BigIntegerField(null=True, blank=True)
    launch: "models.JSONField[dict[str, Any]]" = models.JSONField(
        default=dict,
        blank=True,
        help_text="What an imported run was told: a formats.schema.Launch, with all its arguments as printed.",
    )
    state = models.CharField(max_length=12, choices=STATE_CHOICES, default=RunState.QUEUED)
    attempt_number = models.PositiveSmallIntegerField(default=1)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    reason = models.TextField(blank=True)
    summary = models.JSONField(default=dict, blank=True)
    step_time_s = models.FloatField(null=True, blank=True)
    samples_per_s = models.FloatField(null=True, blank=True)
    tokens_per_s = models.FloatField(null=True, blank=True)
    memory_max_bytes = models.FloatField(null=True, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    queued_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        ordering = ["experiment", "number"]
        constraints = [
            models.UniqueConstraint(fields=["experiment", "number"], name="run_number_once"),
            models.UniqueConstraint(fields=["config", "point_digest"], name="run_point_once"),
        ]
        indexes = [models.Index(fields=["state"], name="run_state")]

    def __str__(self) -> str:
        return f"{self.experiment} #{self.number}"

    def get_absolute_url(self) -> str:
        return reverse("run", args=[self.experiment.slug, self.number])

    @property
    def run_state(self) -> RunState:
        return RunState(self.state)

    @property
    def is_final(self) -> bool:
        return self.run_state.is_final

    @property
    def iterations(self) -> int:
        """Planned steps; 0 where the source of an imported run names none."""
        return int(self.resolved.get("train", {}).get("iterations") or 0)

    def current_attempt(self) -> "Attempt":
        return self.attempts.get(number=self.attempt_number)


class Attempt(models.Model):
    """One try at a run on one node."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="attempts")
    number = models.PositiveSmallIntegerField()
    node = models.ForeignKey(Node, models.PROTECT, null=True, blank=True, related_name="attempts")
    state = models.CharField(max_length=12, choices=STATE_CHOICES, default=RunState.QUEUED)
    committed = models.BigIntegerField(default=0, help_text="Spool position up to which batches are stored.")
    last_step = models.IntegerField(null=True, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    dispatched_at = models.DateTimeField(null=True, blank=True, help_text="When the spec was last sent.")
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    reason = models.TextField(blank=True)
    traceback = models.TextField(blank=True)
    command: "models.JSONField[list[str]]" = models.JSONField(default=list, blank=True)
    environment: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, blank=True)
    summary: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["run", "number"]
        constraints = [models.UniqueConstraint(fields=["run", "number"], name="attempt_number_once")]
        indexes = [models.Index(fields=["state", "lease_expires_at"], name="attempt_lease")]

    def __str__(self) -> str:
        return f"{self.run} attempt {self.number}"
