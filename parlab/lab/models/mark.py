"""What people add to results: stars, tags and notes of runs, comments on experiments and findings."""

from typing import Any

from django.conf import settings
from django.db import models
from django.urls import reverse

from parlab.lab.models.access.viewer import Visible, VisibleManager, VisibleQuerySet

from .experiment import Experiment
from .finding import Finding
from .run import Run

TAG_LENGTH = 40
NOTE_LENGTH = 20_000
COMMENT_LENGTH = 10_000


class Star(models.Model):
    """A run that a person marked; everybody sees who did."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="stars", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "user"], name="star_once")]

    def __str__(self) -> str:
        return f"{self.run} starred by {self.user}"


class TagOfRun(models.Model):
    """A tag that a person gave to a run, for filtering lists; `RunTag` is what scripts report."""

    PROJECT = "run__experiment__project"

    run = models.ForeignKey(Run, models.CASCADE, related_name="person_tags", db_index=False)
    name = models.CharField(max_length=TAG_LENGTH, db_index=True, help_text="Lower case, without spaces.")

    objects = Visible()

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["run", "name"], name="tag_of_run_once")]

    def __str__(self) -> str:
        return self.name


class RunNote(models.Model):
    """The note of a run, in Markdown; a run without a note has no row."""

    run = models.OneToOneField(Run, models.CASCADE, related_name="note")
    text = models.TextField(max_length=NOTE_LENGTH)
    edited_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    edited_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"note of {self.run}"


class CommentQuerySet(VisibleQuerySet["Comment"]):
    def with_people(self) -> "CommentQuerySet":
        """Fetch authors, and the findings and runs that comments are about, in the same query."""
        people = self.select_related("author", "finding__run")
        return people.defer("finding__run__resolved", "finding__run__summary", "finding__run__launch")


CommentManager = VisibleManager.from_queryset(CommentQuerySet)


class Comment(models.Model):
    """What a person wrote about an experiment or one of its findings."""

    PROJECT = "experiment__project"

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="comments")
    # A finding that no longer holds is deleted; the comment then belongs to the experiment alone.
    finding = models.ForeignKey(Finding, models.SET_NULL, null=True, blank=True, related_name="comments")
    about = models.TextField(blank=True, help_text="The message of the finding when the comment was written.")
    text = models.TextField(max_length=COMMENT_LENGTH, help_text="Markdown.")
    author = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    edited_at = models.DateTimeField(null=True, blank=True)

    objects = CommentManager()

    class Meta:
        ordering = ["created_at", "pk"]

    def __str__(self) -> str:
        return f"{self.author}: {self.text[:60]}"

    def get_absolute_url(self) -> str:
        return f"{reverse('experiment-report', args=[self.experiment.slug])}#comment-{self.pk}"

    def may_change(self, user: Any) -> bool:
        """Whether a user may edit the comment: only its author."""
        return bool(self.author_id == user.pk)

    def may_delete(self, user: Any) -> bool:
        """Whether a user may delete the comment: its author, and those who may delete comments of others."""
        return self.may_change(user) or bool(user.has_perm("lab.delete_comment"))
