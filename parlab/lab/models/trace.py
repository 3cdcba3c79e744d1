from typing import Any

from django.conf import settings
from django.db import models

from .run import Run


class RankTrace(models.Model):
    """The analysis of a profiler's trace of one rank of a run.

    Instead of the file its events are stored as columns, in `lab.services.stored_files`, under `sha256`.
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="traces", db_index=False)
    rank = models.PositiveIntegerField()
    name = models.CharField(max_length=200, help_text="Name of the imported file, for display only.")
    sha256 = models.CharField(max_length=64, editable=False)
    size = models.BigIntegerField(help_text="Bytes of the file.")
    analysis: "models.JSONField[dict[str, Any]]" = models.JSONField(
        default=dict, help_text="A traces.stored.Analysis: breakdown by step, kernels, collectives, memory, problems."
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, related_name="+", null=True, help_text="Null: recorded by the run."
    )
    created_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["run", "rank"]
        constraints = [models.UniqueConstraint(fields=["run", "rank"], name="trace_once")]

    def __str__(self) -> str:
        return f"rank {self.rank}"
