from __future__ import annotations

from django.conf import settings
from django.db import models
from django.urls import reverse

SHARED_SLUG, SHARED_NAME = "shared", "Shared"


class Project(models.Model):
    """A group of experiments, reports and everything else that the same people may see."""

    class Visibility(models.TextChoices):
        PRIVATE = "private", "private: its members"
        INTERNAL = "internal", "internal: everybody with an account may read"
        LINK = "link", "by link: its members, and whoever has a public link to a part of it"

    name = models.CharField(max_length=80, unique=True)
    slug = models.SlugField(
        max_length=40, unique=True, help_text="Begins the addresses of its experiments and reports."
    )
    visibility = models.CharField(max_length=8, choices=Visibility, default=Visibility.PRIVATE)
    approval_gpu_hours = models.FloatField(
        null=True,
        blank=True,
        help_text="GPU hours that a person may have queued and running; beyond them a maintainer approves."
        " Empty: those of the shared project; in that one any.",
    )
    is_shared = models.BooleanField(
        default=False,
        editable=False,
        help_text="The project of everything that names none; every account works in it as its groups allow.",
    )
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-is_shared", "name"]
        constraints = [
            models.UniqueConstraint(
                fields=["is_shared"], condition=models.Q(is_shared=True), name="project_shared_once"
            )
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("project", args=[self.slug])

    @property
    def is_open(self) -> bool:
        """Whether every account reads it."""
        return self.visibility == self.Visibility.INTERNAL


class Role(models.TextChoices):
    """What a member may do in a project; each role includes the ones before it."""

    VIEWER = "viewer", "viewer: reads"
    OPERATOR = "operator", "operator: launches, edits, and changes their own"
    MAINTAINER = "maintainer", "maintainer: changes and deletes what others own, and manages members"


class Membership(models.Model):
    """The role of a person in a project."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="memberships", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role, default=Role.VIEWER)
    is_from_groups = models.BooleanField(
        default=False,
        editable=False,
        help_text="Given by a group of single sign-on, which takes it away, too; not by a maintainer.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["user__username"]
        constraints = [models.UniqueConstraint(fields=["project", "user"], name="membership_once")]

    def __str__(self) -> str:
        return f"{self.user} as {self.role} of {self.project}"


class ProjectPool(models.Model):
    """A pool of nodes that only one project uses; a pool without a row is open to all."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="pools")
    pool = models.CharField(max_length=63, unique=True)

    class Meta:
        ordering = ["pool"]

    def __str__(self) -> str:
        return f"pool {self.pool} of {self.project}"


def shared_project_id() -> int:
    """Return the project of everything that names none, which the first use creates."""
    facts = {"name": SHARED_NAME, "slug": SHARED_SLUG, "visibility": Project.Visibility.INTERNAL}
    return int(Project.objects.get_or_create(is_shared=True, defaults=facts)[0].pk)
