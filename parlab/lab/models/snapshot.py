from django.db import models

from .experiment import Experiment
from .run import Run


class Snapshot(models.Model):
    """What was true at a moment: immutable, named by the digest of its content."""

    class Kind(models.TextChoices):
        CONFIGURATION = "configuration", "Configuration"
        ENVIRONMENT = "environment", "Environment"
        RESULTS = "results", "Results"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="snapshots")
    run = models.ForeignKey(Run, models.CASCADE, null=True, blank=True, related_name="snapshots")
    attempt_number = models.PositiveSmallIntegerField(default=1)
    kind = models.CharField(max_length=16, choices=Kind)
    digest = models.CharField(max_length=64, editable=False)
    content = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["run", "attempt_number", "kind", "digest"], name="snapshot_content_once")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.digest[:12]}"
