from django.conf import settings
from django.db import models
from django.urls import reverse


class ExperimentQuerySet(models.QuerySet["Experiment"]):
    def in_use(self) -> "ExperimentQuerySet":
        """Experiments that nobody has archived."""
        return self.filter(archived_at=None)


class Experiment(models.Model):
    """A question, with the configurations, runs and notes that answer it."""

    name = models.CharField(max_length=120, unique=True)
    slug = models.SlugField(max_length=120, unique=True)
    question = models.TextField(blank=True, help_text="What the experiment shall answer, in a sentence or two.")
    notes = models.TextField(blank=True, help_text="What was found, what to do next.")
    source = models.TextField(blank=True, help_text="Where figures that were not measured here come from.")
    archived_at = models.DateTimeField(null=True, blank=True, editable=False)
    """Out of the way: lists leave it out unless they are asked for it."""
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
    """A word that people put on an experiment, to find it by."""

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="tags")
    name = models.CharField(max_length=40, db_index=True, help_text="Lower case, without spaces.")

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["experiment", "name"], name="tag_once")]

    def __str__(self) -> str:
        return self.name
