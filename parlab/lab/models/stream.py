from typing import Any

from django.db import models

from .tracked import TrackedRun


class Stream(models.Model):
    """What one process reports to one run: a rank, or a wrapper that follows the output of a command or file."""

    class Kind(models.TextChoices):
        RANK = "rank"
        OUTPUT = "output"

    tracked = models.ForeignKey(TrackedRun, models.CASCADE, related_name="streams", db_index=False)
    key = models.CharField(max_length=64, help_text="ID that the client chose.")
    kind = models.CharField(max_length=10, choices=Kind, default=Kind.RANK)
    rank = models.IntegerField(default=0, help_text="Rank of the process; of an output, that of its node.")
    attempt_number = models.PositiveSmallIntegerField(default=1, help_text="The attempt of the run that it reports to.")
    parent = models.CharField(
        max_length=64, blank=True, help_text="The same for processes that one launcher started on one node."
    )
    committed = models.BigIntegerField(default=0, help_text="Position up to which batches are stored.")
    state = models.CharField(max_length=12, default="running")
    reason = models.TextField(blank=True)
    traceback = models.TextField(blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    host = models.CharField(max_length=255, blank=True)
    command: "models.JSONField[list[str]]" = models.JSONField(default=list, blank=True)
    environment: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, blank=True)
    clock_offset_s = models.FloatField(default=0.0, help_text="Clock of the client minus that of the server.")
    opened_at = models.DateTimeField()
    last_report_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True, help_text="When the process ended, by the server's clock.")

    class Meta:
        ordering = ["tracked", "pk"]
        constraints = [models.UniqueConstraint(fields=["tracked", "key"], name="stream_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.rank} of {self.tracked}"
