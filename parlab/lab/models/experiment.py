from django.conf import settings
from django.db import models
from django.urls import reverse


class Experiment(models.Model):
    """A question, with the configurations, runs and notes that answer it."""

    name = models.CharField(max_length=120, unique=True)
    slug = models.SlugField(max_length=120, unique=True)
    question = models.TextField(blank=True, help_text="What the experiment shall answer, in a sentence or two.")
    notes = models.TextField(blank=True, help_text="What was found, what to do next.")
    source = models.TextField(blank=True, help_text="Where figures that were not measured here come from.")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="experiments")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("experiment", args=[self.slug])
