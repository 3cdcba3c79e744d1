from __future__ import annotations

from django.conf import settings
from django.db import models

from parlab.lab.models.access.viewer import Visible

from .experiment import Experiment


class LaunchApproval(models.Model):
    """Runs that were launched beyond the budget of their project, and what a maintainer has decided."""

    PROJECT = "experiment__project"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="launch_approvals")
    asked_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    asked_at = models.DateTimeField(auto_now_add=True)
    gpu_hours = models.FloatField(
        null=True, help_text="What its runs may take at most; empty: a chain of them has no time limit."
    )
    budget = models.FloatField(help_text="That which counted in the project at that time.")
    is_approved = models.BooleanField(null=True, help_text="Empty: nobody has decided.")
    decided_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    decided_at = models.DateTimeField(null=True, blank=True)

    objects = Visible()

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"{self.amount} asked by {self.asked_by}"

    @property
    def amount(self) -> str:
        """What its runs may take, with the unit."""
        return "GPU hours without a limit" if self.gpu_hours is None else f"{self.gpu_hours:.3g} GPU hours"

    @property
    def key(self) -> str:
        """The cause of its line in the inbox."""
        return f"approval/{self.pk}"
