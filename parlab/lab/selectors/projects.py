"""Projects that a person sees."""

from __future__ import annotations

from django.db.models import Count, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.http import Http404

from parlab.lab.models import (
    ApiToken,
    Dashboard,
    Experiment,
    Membership,
    Project,
    ReportLink,
    ReportVersion,
    Run,
    ServiceAccount,
)
from parlab.lab.models.access.viewer import Viewer


def seen_projects(viewer: Viewer) -> list[Project]:
    """Return the projects that a person sees, the shared one first."""
    return list(Project.objects.filter(pk__in=viewer.roles))


def seen_project(viewer: Viewer, slug: str) -> Project:
    """Return the project with this slug; raises Http404 for one that the person does not see."""
    project = Project.objects.filter(pk__in=viewer.roles, slug=slug).first()
    if project is None:
        raise Http404(f"no project {slug}")
    return project


def service_accounts(project: Project) -> QuerySet[ServiceAccount]:
    """Return the active service accounts of a project, with `role` and the number of `tokens` in force."""
    role = Membership.objects.filter(user=OuterRef("user"), project=OuterRef("project")).values("role")
    tokens = Count("user__api_tokens", Q(user__api_tokens__revoked_at=None))
    rows = project.service_accounts.filter(user__is_active=True).select_related("user", "project")
    return rows.annotate(role=Subquery(role), tokens=tokens)


def service_account(project: Project, name: str) -> ServiceAccount:
    """Return the active service account of a project with this name; raises Http404."""
    account = service_accounts(project).filter(user__username=f"{name}@{project.slug}.service").first()
    if account is None:
        raise Http404(f"no service account {name}")
    return account


def accounts_with_tokens(project: Project) -> list[ServiceAccount]:
    """Return the active service accounts of a project, each with `user.in_force`, its tokens."""
    tokens = Prefetch("user__api_tokens", ApiToken.objects.filter(revoked_at=None), to_attr="in_force")
    return list(service_accounts(project).prefetch_related(tokens))


def seen_links() -> QuerySet[ReportLink]:
    """Return the public links in force to what the person who asks sees."""
    shown = (
        Q(experiment__in=Experiment.objects.values("pk"))
        | Q(run__in=Run.objects.values("pk"))
        | Q(dashboard__in=Dashboard.objects.values("pk"))
        | Q(version__in=ReportVersion.objects.values("pk"))
    )
    links = ReportLink.objects.filter(shown, revoked_at=None)
    return links.select_related("created_by", "version__report", "experiment", "run__experiment", "dashboard")
