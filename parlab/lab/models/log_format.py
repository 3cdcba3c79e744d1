from typing import Any

from django.conf import settings
from django.db import models

from parlab.lab.models.access.viewer import Visible, home_project_id


class LogFormat(models.Model):
    """One version of a log format that the team taught parlab. Versions are never edited.

    A source keeps the version that it was read with, so that its runs can be rebuilt.
    """

    PROJECT = "project"

    project = models.ForeignKey(
        "lab.Project", models.PROTECT, default=home_project_id, related_name="log_formats", editable=False
    )
    name = models.CharField(max_length=60)
    version = models.PositiveIntegerField(default=1, editable=False)
    definition: "models.JSONField[dict[str, Any]]" = models.JSONField(
        help_text="A formats.learnt.Learnt: what `python -m parlab.formats FILE --learn` writes."
    )
    is_deleted = models.BooleanField(default=False, editable=False, help_text="Only kept for files read with it.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = Visible()

    class Meta:
        ordering = ["name", "-version"]
        constraints = [models.UniqueConstraint(fields=["project", "name", "version"], name="log_format_version_once")]

    def __str__(self) -> str:
        return f"{self.name}, version {self.version}"
