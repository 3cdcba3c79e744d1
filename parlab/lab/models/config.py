from django.conf import settings
from django.db import models

from parlab.lab.models.access.viewer import Visible
from runners import config as run_config
from runners.config import Point, RunConfig

from .experiment import Experiment


class Config(models.Model):
    """One version of a configuration and its sweep; immutable once a run uses it.

    Change it through `lab.services.config_save`, which creates the next version if necessary.
    """

    PROJECT = "experiment__project"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="configs")
    version = models.PositiveIntegerField(editable=False)
    data = models.JSONField(help_text="A RunConfig: the fields that all points of the sweep share.")
    sweep = models.JSONField(default=dict, blank=True, help_text="Axes: dotted field name to list of values.")
    digest = models.CharField(max_length=64, editable=False)
    note = models.CharField(max_length=300, blank=True, help_text="The reason for this version.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = Visible()

    class Meta:
        ordering = ["experiment", "-version"]
        constraints = [models.UniqueConstraint(fields=["experiment", "version"], name="config_version_once")]

    def __str__(self) -> str:
        return f"{self.experiment} v{self.version}"

    @property
    def is_used(self) -> bool:
        return self.runs.exists()

    @property
    def base(self) -> RunConfig:
        """The RunConfig without the sweep; the stored data may be invalid without the values of the axes."""
        return RunConfig.model_validate(self.data)

    def points(self) -> list[Point]:
        return run_config.expand(self.data, self.sweep)
