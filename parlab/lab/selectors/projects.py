"""Projects that a person sees."""

from __future__ import annotations

from django.http import Http404

from parlab.lab.models import Project
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
