"""Public links: read access without an account to an experiment, a run, a dashboard or a published report."""

from __future__ import annotations

import secrets
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Dashboard, Experiment, Project, ReportLink, ReportVersion, Run
from parlab.lab.services.access.rights import may_change, project_of, require_work

Subject = Experiment | Run | Dashboard | ReportVersion
_NAMES: dict[type[Subject], str] = {
    Experiment: "experiment",
    Run: "run",
    Dashboard: "dashboard",
    ReportVersion: "version",
}


def link_create(*, subject: Subject, user: User) -> ReportLink:
    """Create a link, or return the one in force; raises ValueError in a private project, PermissionDenied."""
    require_work(user, subject)
    project = Project.objects.get(pk=project_of(subject))
    if project.visibility == Project.Visibility.PRIVATE:
        raise ValueError(
            f"project {project} is private; a maintainer of it may change who sees it to by link in its settings"
        )
    field: dict[str, Any] = {_NAMES[type(subject)]: subject}
    with transaction.atomic():
        type(subject)._base_manager.select_for_update(of=("self",)).get(pk=subject.pk)
        existing = ReportLink.objects.filter(**field, revoked_at=None).first()
        return existing or ReportLink.objects.create(**field, token=secrets.token_urlsafe(32), created_by=user)


def link_revoke(*, link: ReportLink, user: User) -> None:
    """Revoke a link permanently; the first revocation stays on record."""
    ReportLink.objects.filter(pk=link.pk, revoked_at=None).update(revoked_at=timezone.now(), revoked_by=user)


def may_revoke(user: User, link: ReportLink) -> bool:
    """Return whether a user may revoke a link: who made it, and who may change what it shows."""
    return link.created_by_id == user.pk or may_change(user, link.subject)


def link_in_force(token: str) -> ReportLink | None:
    """Return the link with this token; None for an unknown or revoked one, and in a project that became private."""
    related = ("version__report__project", "experiment__project", "run__experiment__project", "dashboard__project")
    links = ReportLink.objects.select_related(*related, "version__published_by")
    link = links.filter(token=token, revoked_at=None).first()
    if link is None:
        return None
    project = Project.objects.get(pk=project_of(link.subject))
    return None if project.visibility == Project.Visibility.PRIVATE else link
