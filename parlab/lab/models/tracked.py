"""What a run that reports from outside brings besides its numbers: parameters, tags, artifacts."""

from typing import Any

from django.db import models

from .experiment import Experiment
from .run import Run

KEY_LENGTH = 250
NAME_LENGTH = 500


class TrackedRun(models.Model):
    """The outside identity of a run that a script reports, under the names of MLflow's protocol."""

    class Status(models.TextChoices):
        RUNNING = "RUNNING"
        SCHEDULED = "SCHEDULED"
        FINISHED = "FINISHED"
        FAILED = "FAILED"
        KILLED = "KILLED"

    run = models.OneToOneField(Run, models.CASCADE, related_name="tracked")
    uuid = models.CharField(max_length=64, unique=True, help_text="The run ID that clients use.")
    name = models.CharField(max_length=NAME_LENGTH, blank=True)
    user_name = models.CharField(max_length=256, blank=True, help_text="The user as the client states it.")
    status = models.CharField(max_length=10, choices=Status, default=Status.RUNNING)
    start_ms = models.BigIntegerField(null=True, blank=True, help_text="Unix milliseconds, by the client's clock.")
    end_ms = models.BigIntegerField(null=True, blank=True)
    last_report_at = models.DateTimeField(help_text="When the server last received anything from the run.")
    deleted_at = models.DateTimeField(null=True, blank=True)
    launch_key = models.CharField(
        max_length=80, blank=True, db_index=True, help_text="What all ranks of a launch state that share no ID."
    )
    world_size = models.PositiveIntegerField(null=True, blank=True, help_text="Ranks of the launch, by its launcher.")
    last_batch = models.CharField(
        max_length=64,
        blank=True,
        help_text="Digest of the last batch of metrics: a client sends one again after a fault.",
    )
    inputs: "models.JSONField[list[object]]" = models.JSONField(default=list, blank=True, help_text="Datasets.")
    outputs: "models.JSONField[list[object]]" = models.JSONField(default=list, blank=True, help_text="Models.")

    class Meta:
        indexes = [models.Index(fields=["status", "last_report_at"], name="tracked_silence")]

    def __str__(self) -> str:
        return self.name or self.uuid


class RunParameter(models.Model):
    """One setting of a tracked run, as text; it never changes."""

    tracked = models.ForeignKey(TrackedRun, models.CASCADE, related_name="parameters", db_index=False)
    key = models.CharField(max_length=KEY_LENGTH)
    value = models.TextField(blank=True)

    class Meta:
        ordering = ["key"]
        constraints = [models.UniqueConstraint(fields=["tracked", "key"], name="run_parameter_once")]

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


class RunTag(models.Model):
    """A label of a tracked run, as text; it may change."""

    tracked = models.ForeignKey(TrackedRun, models.CASCADE, related_name="tags", db_index=False)
    key = models.CharField(max_length=KEY_LENGTH)
    value = models.TextField(blank=True)

    class Meta:
        ordering = ["key"]
        constraints = [models.UniqueConstraint(fields=["tracked", "key"], name="run_tag_once")]

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


class LatestMetric(models.Model):
    """The value of a metric at its highest step (then time, then value): what lists and searches compare."""

    tracked = models.ForeignKey(TrackedRun, models.CASCADE, related_name="metrics", db_index=False)
    key = models.CharField(max_length=KEY_LENGTH)
    value = models.FloatField(null=True, help_text="Null for a value that is not a number.")
    timestamp_ms = models.BigIntegerField()
    step = models.BigIntegerField()

    class Meta:
        ordering = ["key"]
        constraints = [models.UniqueConstraint(fields=["tracked", "key"], name="latest_metric_once")]

    def __str__(self) -> str:
        return f"{self.key}={self.value} at step {self.step}"


class ExperimentLabel(models.Model):
    """A key and a value that a client set on an experiment."""

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="labels", db_index=False)
    key = models.CharField(max_length=KEY_LENGTH)
    value = models.TextField(blank=True)

    class Meta:
        ordering = ["key"]
        constraints = [models.UniqueConstraint(fields=["experiment", "key"], name="experiment_label_once")]

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


class NameMeaning(models.Model):
    """What a name that scripts use means in an experiment, where a person has decided it."""

    class Kind(models.TextChoices):
        METRIC = "metric"
        SETTING = "setting"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="name_meanings", db_index=False)
    kind = models.CharField(max_length=8, choices=Kind)
    name = models.CharField(max_length=KEY_LENGTH, help_text="The name as scripts report it.")
    meaning = models.CharField(
        max_length=40, blank=True, help_text="Of formats.names.MEANINGS or SETTINGS; empty: it means none of them."
    )

    class Meta:
        ordering = ["kind", "name"]
        constraints = [models.UniqueConstraint(fields=["experiment", "kind", "name"], name="name_meaning_once")]

    def __str__(self) -> str:
        return f"{self.name} means {self.meaning or 'nothing'}"


class Artifact(models.Model):
    """A file of a tracked run; its bytes are stored once, under their SHA-256."""

    tracked = models.ForeignKey(TrackedRun, models.CASCADE, related_name="artifacts", db_index=False)
    path = models.CharField(max_length=1_000, help_text="Relative to the root of the run's artifacts.")
    sha256 = models.CharField(max_length=64, db_index=True)
    size = models.BigIntegerField(help_text="Bytes.")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["path"]
        constraints = [models.UniqueConstraint(fields=["tracked", "path"], name="artifact_path_once")]

    def __str__(self) -> str:
        return self.path


class LoggedModel(models.Model):
    """A model that a run has logged over MLflow's protocol; its files are artifacts of the run, in a folder."""

    class Status(models.TextChoices):
        UNSPECIFIED = "LOGGED_MODEL_STATUS_UNSPECIFIED", "unknown"
        PENDING = "LOGGED_MODEL_PENDING", "pending"
        READY = "LOGGED_MODEL_READY", "ready"
        FAILED = "LOGGED_MODEL_UPLOAD_FAILED", "upload failed"

    tracked = models.ForeignKey(TrackedRun, models.CASCADE, related_name="logged_models")
    has_run = models.BooleanField(default=True, help_text="False: the run was created to hold the model.")
    model_id = models.CharField(max_length=80, unique=True)
    name = models.CharField(max_length=500)
    model_type = models.CharField(max_length=500, blank=True)
    status = models.CharField(max_length=40, choices=Status, default=Status.PENDING)
    created_ms = models.BigIntegerField()
    updated_ms = models.BigIntegerField()
    deleted_at = models.DateTimeField(null=True, blank=True)
    parameters: "models.JSONField[dict[str, str]]" = models.JSONField(default=dict, blank=True)
    tags: "models.JSONField[dict[str, str]]" = models.JSONField(default=dict, blank=True)
    metrics: "models.JSONField[list[dict[str, Any]]]" = models.JSONField(
        default=list, blank=True, help_text="Latest value per metric and dataset, in MLflow's form."
    )

    class Meta:
        ordering = ["-created_ms", "-pk"]

    def __str__(self) -> str:
        return self.name

    @property
    def folder(self) -> str:
        """The folder of its files among the artifacts of the run."""
        return f"models/{self.model_id}"
