from typing import Any, NoReturn

from django.conf import settings
from django.contrib.auth.models import User
from django.db import models

from parlab.lab.models.access.viewer import VisibleManager, VisibleQuerySet
from runners.config import digest

from .experiment import Experiment
from .run import Run


class SnapshotQuerySet(VisibleQuerySet["Snapshot"]):
    """Snapshots are deleted with their experiment; pictures also individually (`lab.services.picture_delete`)."""

    def update(self, **kwargs: Any) -> NoReturn:
        raise TypeError("snapshots are immutable; add a new one")

    def delete(self) -> NoReturn:
        raise TypeError("snapshots are immutable and cannot be deleted individually; delete the experiment")


SnapshotManager = VisibleManager.from_queryset(SnapshotQuerySet)


class Snapshot(models.Model):
    """An immutable record of a configuration, an environment, results or a picture, named by its digest."""

    PROJECT = "experiment__project"

    class Kind(models.TextChoices):
        CONFIGURATION = "configuration", "Configuration"
        ENVIRONMENT = "environment", "Environment"
        RESULTS = "results", "Results"
        IMAGE = "image", "Picture"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="snapshots")
    run = models.ForeignKey(Run, models.CASCADE, null=True, blank=True, related_name="snapshots")
    attempt_number = models.PositiveSmallIntegerField(default=1)
    kind = models.CharField(max_length=16, choices=Kind)
    digest = models.CharField(max_length=64, editable=False)
    content = models.JSONField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="Set for pictures.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects = SnapshotManager()

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["run", "attempt_number", "kind", "digest"], name="snapshot_content_once")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.digest[:12]}"

    @property
    def caption(self) -> str:
        """The caption of a picture, for imported references the one of the page."""
        content = self.content
        return next((str(content[name]) for name in ("caption", "alt", "source") if content.get(name)), "picture")

    def is_deletable_by(self, user: User) -> bool:
        """Return whether a user may delete the picture. Pictures that an imported page refers to stay."""
        is_own = self.created_by_id == user.pk and user.has_perm("lab.add_snapshot")
        return bool(self.content.get("width")) and (is_own or user.has_perm("lab.delete_snapshot"))

    @property
    def is_intact(self) -> bool:
        """Whether the content still matches the digest."""
        return digest(self.content) == self.digest
