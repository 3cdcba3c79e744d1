from typing import Any, NoReturn

from django.conf import settings
from django.db import models
from django.urls import reverse

from .experiment import Experiment
from .run import Run
from .stored_file import StoredFile


class Report(models.Model):
    """A text with live figures and tables, as it is being written; `lab.services.report_save` guards its revisions."""

    title = models.CharField(max_length=200)
    slug = models.SlugField(max_length=120, unique=True)
    experiment = models.ForeignKey(
        Experiment,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="reports",
        help_text="What directives mean that name no experiment.",
    )
    text = models.TextField(blank=True, help_text="Markdown with directives such as {{ figure throughput }}.")
    revision = models.PositiveIntegerField(default=1, help_text="Counts the saves: who saves names the one they saw.")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="reports")
    created_at = models.DateTimeField(auto_now_add=True)
    saved_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    saved_at = models.DateTimeField(auto_now_add=True)
    editor = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    editor_seen_at = models.DateTimeField(null=True, blank=True, help_text="When the editor's page last spoke.")

    class Meta:
        ordering = ["-saved_at", "-pk"]

    def __str__(self) -> str:
        return self.title

    def get_absolute_url(self) -> str:
        return reverse("written-report", args=[self.slug])


class ReportVersionQuerySet(models.QuerySet["ReportVersion"]):
    """Published versions go only with their whole report."""

    def update(self, **kwargs: Any) -> NoReturn:
        raise TypeError("published versions never change; publish a new one")

    def delete(self) -> NoReturn:
        raise TypeError("published versions are not deleted one by one; delete the report, or revoke its links")


class ReportVersion(models.Model):
    """A report as it was published: its text, and every number and figure as it was then."""

    report = models.ForeignKey(Report, models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    title = models.CharField(max_length=200)
    text = models.TextField()
    content: "models.JSONField[dict[str, Any]]" = models.JSONField(help_text="A reports.blocks.Content.")
    digest = models.CharField(max_length=64, editable=False, help_text="Of title, text and content.")
    published_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    published_at = models.DateTimeField(auto_now_add=True)

    objects = ReportVersionQuerySet.as_manager()

    class Meta:
        ordering = ["report", "-number"]
        constraints = [models.UniqueConstraint(fields=["report", "number"], name="report_version_once")]

    def __str__(self) -> str:
        return f"{self.title} v{self.number}"

    def get_absolute_url(self) -> str:
        return reverse("report-version", args=[self.report.slug, self.number])


class ReportFile(models.Model):
    """A file of a published version: a picture of a gallery that it shows, or drawn once from what was frozen."""

    version = models.ForeignKey(ReportVersion, models.CASCADE, related_name="files")
    name = models.CharField(max_length=80, help_text="`figure-1.svg`, `report.pdf`, `picture-<sha256>`.")
    file = models.ForeignKey(StoredFile, models.PROTECT, related_name="+")

    class Meta:
        ordering = ["version", "name"]
        constraints = [models.UniqueConstraint(fields=["version", "name"], name="report_file_once")]

    def __str__(self) -> str:
        return self.name


class ReportLink(models.Model):
    """Lets whoever knows its token read one published version without a login, until somebody revokes it."""

    version = models.ForeignKey(ReportVersion, models.CASCADE, related_name="links")
    token = models.CharField(max_length=64, unique=True, editable=False)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    revoked_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+")
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"link {self.pk} to {self.version}"

    @property
    def is_revoked(self) -> bool:
        return self.revoked_at is not None


class PictureJob(models.Model):
    """Pictures that a worker draws: those of a published version, or the panels of a run."""

    class State(models.TextChoices):
        WAITING = "waiting", "Waiting"
        DRAWING = "drawing", "Drawing"
        DONE = "done", "Done"
        FAILED = "failed", "Failed"

    version = models.ForeignKey(ReportVersion, models.CASCADE, null=True, blank=True, related_name="jobs")
    run = models.ForeignKey(Run, models.CASCADE, null=True, blank=True, related_name="picture_jobs")
    state = models.CharField(max_length=10, choices=State, default=State.WAITING)
    done = models.PositiveIntegerField(default=0)
    total = models.PositiveIntegerField(default=0)
    tries = models.PositiveSmallIntegerField(default=0, help_text="How often a worker began.")
    problem = models.TextField(blank=True, help_text="Why there are no pictures, and what to do.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now_add=True, help_text="When the worker last said something.")

    class Meta:
        ordering = ["-pk"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(version__isnull=False) ^ models.Q(run__isnull=False), name="picture_job_of_one_thing"
            )
        ]

    def __str__(self) -> str:
        return f"pictures of {self.version or self.run}: {self.state}"

    @property
    def is_open(self) -> bool:
        return self.state in (self.State.WAITING, self.State.DRAWING)
