from typing import Any

from django.conf import settings
from django.db import models

from parlab.lab.models.access.viewer import VisibleManager, VisibleQuerySet

from .experiment import Experiment
from .run import Run
from .source import Source


class FindingQuerySet(VisibleQuerySet["Finding"]):
    def open(self) -> "FindingQuerySet":
        """Findings that are not acknowledged."""
        return self.filter(acknowledged_at=None)


FindingManager = VisibleManager.from_queryset(FindingQuerySet)


class Finding(models.Model):
    """Two contradicting numbers that a rule reported; `lab.services.findings_refresh` keeps findings up to date.

    A finding belongs to a run, to a source (`where` is then a place in its document), or to the whole experiment.
    """

    PROJECT = "experiment__project"

    class Severity(models.TextChoices):
        ERROR = "error", "Error"
        WARNING = "warning", "Warning"
        INFO = "info", "Info"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="findings")
    run = models.ForeignKey(Run, models.CASCADE, null=True, blank=True, related_name="findings")
    source = models.ForeignKey(Source, models.CASCADE, null=True, blank=True, related_name="findings")
    rule = models.CharField(max_length=80, help_text="Name of the rule in docs/understand/findings.md.")
    severity = models.CharField(max_length=10, choices=Severity)
    message = models.TextField()
    numbers: "models.JSONField[dict[str, float]]" = models.JSONField(default=dict)
    where: "models.JSONField[dict[str, Any]]" = models.JSONField(
        default=dict, help_text="A formats.schema.Place without its empty parts."
    )
    where_digest = models.CharField(max_length=64, editable=False)
    lines: "models.JSONField[list[int]]" = models.JSONField(default=list, help_text="Lines of the source.")
    created_at = models.DateTimeField(auto_now_add=True)
    acknowledged_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+"
    )
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_reason = models.TextField(blank=True)

    objects = FindingManager()

    class Meta:
        ordering = ["experiment", "pk"]
        # The digest includes the run or source: a constraint over NULL columns would not reject duplicates.
        constraints = [models.UniqueConstraint(fields=["experiment", "rule", "where_digest"], name="finding_once")]

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"

    @property
    def is_acknowledged(self) -> bool:
        return self.acknowledged_at is not None

    @property
    def line(self) -> int | None:
        """The first line of the source that the finding refers to."""
        return self.lines[0] if self.lines else None
