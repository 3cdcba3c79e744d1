"""Preferences and visits of users, saved views, dashboards, and the layouts of panels.

Their tables and permissions belong to the app `pages`, whose migrations made them.
"""

from typing import Any

from django.conf import settings
from django.db import models
from django.urls import reverse

from parlab.lab.models.access.viewer import Visible, home_project_id

from .experiment import Experiment


class Preference(models.Model):
    """A preference of a user, for example the hidden columns of a list."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    name = models.CharField(max_length=60)
    value: "models.JSONField[Any]" = models.JSONField()

    class Meta:
        app_label = "pages"
        constraints = [models.UniqueConstraint(fields=["user", "name"], name="preference_once")]

    def __str__(self) -> str:
        return f"{self.name} of {self.user}"


class Visit(models.Model):
    """The last visit of a user to Home or to an experiment, and the end of the visit before it."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_index=False)
    experiment = models.ForeignKey(Experiment, models.CASCADE, null=True, blank=True, related_name="+")
    """None: Home."""
    since = models.DateTimeField(null=True, blank=True)
    """What changed since then is new to the user; None during the first visit."""
    last_at = models.DateTimeField()

    class Meta:
        app_label = "pages"
        constraints = [
            models.UniqueConstraint(fields=["user", "experiment"], name="visit_once"),
            models.UniqueConstraint(fields=["user"], condition=models.Q(experiment=None), name="visit_of_home_once"),
        ]

    def __str__(self) -> str:
        return f"{self.user} at {self.experiment or 'home'}"


class SavedView(models.Model):
    """A named address of a page with what was chosen on it: a list, a sweep or a comparison."""

    PROJECT = "project"

    project = models.ForeignKey(
        "lab.Project", models.PROTECT, default=home_project_id, related_name="+", editable=False
    )
    name = models.CharField(max_length=80)
    path = models.CharField(max_length=300, db_index=True)
    """The page, without its query."""
    query = models.CharField(max_length=4000, blank=True)
    is_default = models.BooleanField(default=False)
    """Whether the page opens with this view for everybody."""
    panels: "models.JSONField[list[dict[str, Any]]]" = models.JSONField(default=list, blank=True)
    """The panels of an experiment's page as they were arranged; empty for other pages and the usual panels."""
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = Visible()

    class Meta:
        app_label = "pages"
        ordering = ["-is_default", "name"]
        constraints = [
            models.UniqueConstraint(fields=["project", "path", "name"], name="saved_view_name_once"),
            models.UniqueConstraint(
                fields=["project", "path"], condition=models.Q(is_default=True), name="saved_view_one_default"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def address(self) -> str:
        """The page with its choices; a view with panels of its own is named in it."""
        query = "&".join(filter(None, [self.query, f"view={self.pk}" if self.panels else ""]))
        return f"{self.path}?{query}" if query else self.path


class Dashboard(models.Model):
    """An arrangement of panels about one experiment or several."""

    PROJECT = "project"

    project = models.ForeignKey(
        "lab.Project", models.PROTECT, default=home_project_id, related_name="+", editable=False
    )
    name = models.CharField(max_length=120)
    experiment = models.ForeignKey(Experiment, models.CASCADE, null=True, blank=True, related_name="+")
    """The experiment of panels that name none."""
    is_default = models.BooleanField(default=False)
    """Whether its experiment links to it for everybody."""
    panels: "models.JSONField[Any]" = models.JSONField(default=list)
    """See `parlab.lab.services.pages.dashboards.Panel`."""
    revision = models.PositiveIntegerField(default=1)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    saved_at = models.DateTimeField(auto_now=True)

    objects = Visible()

    class Meta:
        app_label = "pages"
        ordering = ["-is_default", "name"]
        constraints = [
            models.UniqueConstraint(
                fields=["experiment"], condition=models.Q(is_default=True), name="dashboard_one_default"
            )
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("dashboard", args=[self.pk])


class PanelLayout(models.Model):
    """Which panels the page of an experiment shows, and how large: of one person, or of all who have none."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, null=True, blank=True, related_name="+")
    """None: for everybody."""
    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="+")
    panels: "models.JSONField[Any]" = models.JSONField(default=list)
    """See `parlab.lab.services.pages.panel_layouts.Placed`."""
    saved_at = models.DateTimeField(auto_now=True)

    class Meta:
        app_label = "pages"
        constraints = [
            models.UniqueConstraint(fields=["user", "experiment"], name="panel_layout_once"),
            models.UniqueConstraint(
                fields=["experiment"], condition=models.Q(user=None), name="panel_layout_for_all_once"
            ),
        ]

    def __str__(self) -> str:
        return f"panels of {self.experiment} for {self.user or 'everybody'}"
