from django.conf import settings
from django.db import models
from django.urls import reverse


class ExperimentQuerySet(models.QuerySet["Experiment"]):
    def in_use(self) -> "ExperimentQuerySet":
        """Experiments that are not archived."""
        return self.filter(archived_at=None)


class Experiment(models.Model):
    """A question with the configurations, runs and notes that answer it."""

    name = models.CharField(max_length=500, unique=True)
    slug = models.SlugField(max_length=120, unique=True)
    question = models.TextField(blank=True, help_text="The question to answer, in one or two sentences.")
    notes = models.TextField(blank=True, help_text="Results and next steps.")
    source = models.TextField(blank=True, help_text="Origin of results that were not measured by this installation.")
    archived_at = models.DateTimeField(null=True, blank=True, editable=False)
    """Archived experiments are not listed unless a filter includes them."""
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="experiments")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = ExperimentQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("experiment", args=[self.slug])


class Tag(models.Model):
    """A tag of an experiment, for filtering lists."""

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="tags")
    name = models.CharField(max_length=40, db_index=True, help_text="Lower case, without spaces.")

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["experiment", "name"], name="tag_once")]

    def __str__(self) -> str:
        return self.name
