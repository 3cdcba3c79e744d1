"""Projects that a person sees."""

from __future__ import annotations

from django.db.models import Q, QuerySet
from django.http import Http404

from parlab.lab.models import Dashboard, Experiment, Project, ReportLink, ReportVersion, Run
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
