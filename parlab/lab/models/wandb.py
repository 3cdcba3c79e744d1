"""What the protocol of W&B's clients needs besides a tracked run: positions, raw settings, values, artifacts."""

from typing import Any

from django.db import models

from parlab.lab.models.access.viewer import Visible

from .experiment import Experiment
from .tracked import TrackedRun

RUN_ID_LENGTH = 128


class WandbRun(models.Model):
    """A run that one of W&B's clients reports, and how far each of its files is stored."""

    PROJECT = "experiment__project"

    tracked = models.OneToOneField(TrackedRun, models.CASCADE, related_name="wandb")
    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="+")
    run_id = models.CharField(max_length=RUN_ID_LENGTH, help_text="The ID that the client chose.")
    positions: "models.JSONField[dict[str, dict[str, int]]]" = models.JSONField(
        default=dict, blank=True, help_text="Writer -> file -> number of lines that are stored."
    )
    marks: "models.JSONField[dict[str, str]]" = models.JSONField(
        default=dict,
        blank=True,
        help_text="File -> digest of its first line, by which a client that sends again is known.",
    )
    writers: "models.JSONField[dict[str, Any]]" = models.JSONField(
        default=dict, blank=True, help_text="Writer -> its rank, its exit code once it has ended, its unfinished line."
    )
    config: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, blank=True, help_text="As sent.")
    summary: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, blank=True, help_text="As sent.")
    facts: "models.JSONField[dict[str, Any]]" = models.JSONField(
        default=dict, blank=True, help_text="Group, job type, notes, tags, host, program, commit."
    )

    objects = Visible()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["experiment", "run_id"], name="wandb_run_once")]

    def __str__(self) -> str:
        return self.run_id

    def axes(self) -> dict[str, str]:
        """Return for each metric that has an axis of its own the metric that it is drawn over (`define_metric`)."""
        value = (self.config.get("_wandb") or {}).get("value") or {}
        defined = value.get("m") if isinstance(value, dict) else None
        names = [item.get("1", "") for item in defined or [] if isinstance(item, dict)]
        # Fields of MetricRecord: 1 name, 4 name of the axis, 5 its place in this list, from 1.
        axes = {}
        for item, name in zip(defined or [], names, strict=False):
            place, axis = item.get("5"), item.get("4", "")
            if isinstance(place, int) and 1 <= place <= len(names):
                axis = names[place - 1]
            if name and axis:
                axes[name] = axis
        return axes


class LoggedValue(models.Model):
    """What a script has logged at a step and is not a number: a text, table, picture, histogram."""

    PROJECT = "tracked__run__experiment__project"

    tracked = models.ForeignKey(TrackedRun, models.CASCADE, related_name="values", db_index=False)
    key = models.CharField(max_length=250)
    step = models.BigIntegerField()
    at_ms = models.BigIntegerField()
    value: "models.JSONField[Any]" = models.JSONField(help_text="A text, or an object whose _type says what it is.")

    objects = Visible()

    class Meta:
        ordering = ["pk"]
        indexes = [models.Index(fields=["tracked", "step"], name="logged_value_step")]

    def __str__(self) -> str:
        return f"{self.key} at step {self.step}"


class WandbArtifact(models.Model):
    """One version of an artifact; its files are artifacts of the run that logged it."""

    class State(models.TextChoices):
        PENDING = "PENDING"
        COMMITTED = "COMMITTED"
        DELETED = "DELETED"

    PROJECT = "experiment__project"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="wandb_artifacts")
    tracked = models.ForeignKey(TrackedRun, models.CASCADE, related_name="wandb_artifacts")
    type = models.CharField(max_length=128)
    name = models.CharField(max_length=128, help_text="Name of the collection.")
    version = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=State, default=State.PENDING)
    digest = models.CharField(max_length=128)
    client_id = models.CharField(max_length=256, blank=True, db_index=True)
    aliases: "models.JSONField[list[str]]" = models.JSONField(default=list, blank=True)
    description = models.TextField(blank=True)
    metadata: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, blank=True)
    users = models.ManyToManyField(TrackedRun, related_name="used_artifacts", blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = Visible()

    class Meta:
        ordering = ["-version"]
        constraints = [
            models.UniqueConstraint(fields=["experiment", "name", "version"], name="wandb_artifact_version_once")
        ]

    def __str__(self) -> str:
        return f"{self.name}:v{self.version}"

    @property
    def folder(self) -> str:
        """The folder of its files among the artifacts of its run."""
        return f"artifacts/{self.name}/v{self.version}"

    @property
    def manifest(self) -> str:
        """The path of its manifest among the artifacts of its run."""
        return f"artifacts/{self.name}/v{self.version}.manifest.json"
