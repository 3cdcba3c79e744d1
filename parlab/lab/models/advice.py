from typing import Any

from django.conf import settings
from django.db import models

from parlab.lab.models.access.viewer import Visible

from .run import Run


class AdviceTrial(models.Model):
    """Advice that a person tried: the run it was given for, the changed run, and the predicted gain."""

    PROJECT = "run__experiment__project"

    run = models.ForeignKey(Run, models.CASCADE, related_name="advice_trials", db_index=False)
    changed_run = models.ForeignKey(Run, models.CASCADE, related_name="advised_by")
    kind = models.CharField(max_length=40)
    title = models.CharField(max_length=200)
    changes: "models.JSONField[dict[str, Any]]" = models.JSONField(default=dict, help_text="Fields with new values.")
    gain = models.FloatField(help_text="Predicted share of the step time that the change saves.")
    low = models.FloatField()
    high = models.FloatField()
    part = models.CharField(max_length=40, help_text="The term of the waterfall that the advice came from.")
    evidence = models.TextField(blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = Visible()

    class Meta:
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["run", "changed_run"], name="advice_trial_once")]

    def __str__(self) -> str:
        return self.title

    @property
    def realised(self) -> float | None:
        """Share of the time of a step, or of the other unit of both runs, that was saved; None until both have it."""
        if self.run.unit_name != self.changed_run.unit_name:
            return None
        before, after = self.run.unit_time_s, self.changed_run.unit_time_s
        return 1 - after / before if before and after else None
