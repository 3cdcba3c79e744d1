from typing import Any, NoReturn

from django.conf import settings
from django.contrib.auth.models import User
from django.db import models
from django.urls import reverse

from parlab.lab.models.access.viewer import Visible, VisibleManager, VisibleQuerySet, home_project_id

from .experiment import Experiment
from .pages import Dashboard
from .run import Run
from .stored_file import StoredFile


class Report(models.Model):
    """An editable text with live figures and tables; `lab.services.report_save` checks its revisions."""

    PROJECT = "project"

    project = models.ForeignKey(
        "lab.Project", models.PROTECT, default=home_project_id, related_name="reports", editable=False
    )
    title = models.CharField(max_length=200)
    slug = models.SlugField(max_length=120, unique=True)
    experiment = models.ForeignKey(
        Experiment,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="reports",
        help_text="Default experiment of directives.",
    )
    text = models.TextField(blank=True, help_text="Markdown with directives such as {{ figure throughput }}.")
    revision = models.PositiveIntegerField(default=1, help_text="Number of saves; an editor saves upon a revision.")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="reports")
    created_at = models.DateTimeField(auto_now_add=True)
    saved_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    saved_at = models.DateTimeField(auto_now_add=True)
    editor = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    editor_seen_at = models.DateTimeField(null=True, blank=True, help_text="Last request from the editor's page.")

    objects = Visible()

    class Meta:
        ordering = ["-saved_at", "-pk"]

    def __str__(self) -> str:
        return self.title

    def get_absolute_url(self) -> str:
        return reverse("written-report", args=[self.slug])

    def is_editable_by(self, user: User) -> bool:
        """Return whether a user may edit the report: with the permission, or as its owner."""
        return user.has_perm("lab.change_report") or (self.owner_id == user.pk and user.has_perm("lab.add_report"))


class ReportVersionQuerySet(VisibleQuerySet["ReportVersion"]):
    """Published versions are deleted only together with their report."""

    def update(self, **kwargs: Any) -> NoReturn:
        raise TypeError("published versions are immutable; publish a new one")

    def delete(self) -> NoReturn:
        raise TypeError("published versions cannot be deleted individually; delete the report, or revoke its links")


ReportVersionManager = VisibleManager.from_queryset(ReportVersionQuerySet)


class ReportVersion(models.Model):
    """A published report: its text, and all numbers and figures at the time of publication."""

    PROJECT = "report__project"

    report = models.ForeignKey(Report, models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    title = models.CharField(max_length=200)
    text = models.TextField()
    content: "models.JSONField[dict[str, Any]]" = models.JSONField(help_text="A reports.blocks.Content.")
    digest = models.CharField(max_length=64, editable=False, help_text="Of title, text and content.")
    published_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    published_at = models.DateTimeField(auto_now_add=True)

    objects = ReportVersionManager()

    class Meta:
        ordering = ["report", "-number"]
        constraints = [models.UniqueConstraint(fields=["report", "number"], name="report_version_once")]

    def __str__(self) -> str:
        return f"{self.title} v{self.number}"

    def get_absolute_url(self) -> str:
        return reverse("report-version", args=[self.report.slug, self.number])


class ReportFile(models.Model):
    """A file of a published version: a picture from a gallery, or a figure rendered from the frozen content."""

    version = models.ForeignKey(ReportVersion, models.CASCADE, related_name="files")
    name = models.CharField(max_length=80, help_text="`figure-1.svg`, `report.pdf`, `picture-<sha256>`.")
    file = models.ForeignKey(StoredFile, models.PROTECT, related_name="+")

    class Meta:
        ordering = ["version", "name"]
        constraints = [models.UniqueConstraint(fields=["version", "name"], name="report_file_once")]

    def __str__(self) -> str:
        return self.name


class ReportLink(models.Model):
    """A public link: gives read access to one thing without a login to anyone with its token, until it is revoked.

    Of a report it shows one published version, of an experiment, a run or a dashboard the present numbers.
    """

    SUBJECTS = ("version", "experiment", "run", "dashboard")

    version = models.ForeignKey(ReportVersion, models.CASCADE, null=True, blank=True, related_name="links")
    experiment = models.ForeignKey(Experiment, models.CASCADE, null=True, blank=True, related_name="links")
    run = models.ForeignKey(Run, models.CASCADE, null=True, blank=True, related_name="links")
    dashboard = models.ForeignKey("pages.Dashboard", models.CASCADE, null=True, blank=True, related_name="links")
    token = models.CharField(max_length=64, unique=True, editable=False)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    revoked_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+")
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-pk"]
        constraints = [
            models.CheckConstraint(
                condition=(
                    models.Q(version__isnull=False)
                    ^ models.Q(experiment__isnull=False)
                    ^ models.Q(run__isnull=False)
                    ^ models.Q(dashboard__isnull=False)
                ),
                name="report_link_of_one_thing",
            )
        ]

    def __str__(self) -> str:
        return f"link {self.pk} to {self.subject}"

    @property
    def subject(self) -> "ReportVersion | Experiment | Run | Dashboard":
        name = next(name for name in self.SUBJECTS if getattr(self, f"{name}_id") is not None)
        shown: ReportVersion | Experiment | Run | Dashboard = getattr(self, name)
        return shown

    @property
    def is_revoked(self) -> bool:
        return self.revoked_at is not None


class PictureJob(models.Model):
    """A request to a worker to render pictures: those of a published version, or the panels of a run."""

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
    tries = models.PositiveSmallIntegerField(default=0, help_text="Number of times that a worker started the job.")
    problem = models.TextField(blank=True, help_text="Why the job failed, and what to do.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now_add=True, help_text="Time of the worker's last update.")

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
