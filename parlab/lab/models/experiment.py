from django.conf import settings
from django.db import models
from django.urls import reverse

from parlab.lab.models.access.viewer import Visible, VisibleManager, VisibleQuerySet, home_project_id


class ExperimentQuerySet(VisibleQuerySet["Experiment"]):
    def in_use(self) -> "ExperimentQuerySet":
        return self.filter(archived_at=None)


ExperimentManager = VisibleManager.from_queryset(ExperimentQuerySet)


class Experiment(models.Model):
    """A question with the configurations, runs and notes that answer it."""

    PROJECT = "project"

    project = models.ForeignKey(
        "lab.Project", models.PROTECT, default=home_project_id, related_name="experiments", editable=False
    )
    name = models.CharField(max_length=500)
    slug = models.SlugField(
        max_length=120, unique=True, help_text="Its address; outside of the shared project it begins with the project."
    )
    question = models.TextField(blank=True, help_text="The question to answer, in one or two sentences.")
    notes = models.TextField(blank=True, help_text="Results and next steps.")
    source = models.TextField(blank=True, help_text="Origin of results that were not measured by this installation.")
    archived_at = models.DateTimeField(null=True, blank=True, editable=False)
    """Archived experiments are not listed unless a filter includes them."""
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="experiments")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = ExperimentManager()

    class Meta:
        ordering = ["-created_at"]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="experiment_name_once")]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("experiment", args=[self.slug])


class Tag(models.Model):
    """A tag of an experiment, for filtering lists."""

    PROJECT = "experiment__project"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="tags")
    name = models.CharField(max_length=40, db_index=True, help_text="Lower case, without spaces.")

    objects = Visible()

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["experiment", "name"], name="tag_once")]

    def __str__(self) -> str:
        return self.name
