"""Who asks: sets the viewer of a request, by which all reads are limited to the projects that the person sees."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from django.apps import apps
from django.db import models
from django.http import HttpRequest, HttpResponse

from parlab.lab.models import Comment, Dashboard, Experiment, Finding, InboxItem, Report, SavedView
from parlab.lab.models.access.viewer import Viewer, viewer_set
from parlab.tuner.models import Study
from parlab.watch.models import Watch

Answer = Callable[[HttpRequest], HttpResponse]

CHOSEN = "project"
"""Where a session keeps the project that was chosen in the rail."""
SUBJECTS: tuple[tuple[re.Pattern[str], type[models.Model], str], ...] = tuple(
    (re.compile(rf"(?:api/)?{route}"), model, place)
    for route, model, place in (
        (r"experiments/<slug:slug>/comments/<int:pk>", Comment, "pk"),
        (r"experiments/<slug:slug>/", Experiment, "slug"),
        (r"reports/<slug:slug>/", Report, "slug"),
        (r"(?:tune|studies)/<int:pk>/", Study, "pk"),
        (r"watch(?:es)?/<int:pk>/", Watch, "pk"),
        (r"inbox/<int:pk>/", InboxItem, "pk"),
        (r"findings/<int:pk>/", Finding, "pk"),
        (r"views/<int:pk>/", SavedView, "pk"),
        (r"dashboards/<int:pk>/", Dashboard, "pk"),
    )
)
"""What the addresses of pages and API name: route, model, and the field by which it is found."""


class Viewers:
    """Middleware that sets who asks; nothing is read before the first query of the view."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        token = getattr(request, "auth", None)
        viewer = Viewer(lambda: request.user, getattr(token, "project_id", None))
        request.viewer = viewer  # type: ignore[attr-defined]
        viewer_set(viewer)
        try:
            return self._get_response(request)
        finally:
            # Not by a token of the variable: under ASGI the two halves may run in different contexts.
            viewer_set(None)

    def process_view(self, request: HttpRequest, _view: Any, _args: Any, places: dict[str, Any]) -> None:
        viewer: Viewer = request.viewer  # type: ignore[attr-defined]
        route = request.resolver_match.route if request.resolver_match else ""
        viewer.find_subject = lambda: subject_of(route, places)
        chosen = request.session.get(CHOSEN) if hasattr(request, "session") else None
        if chosen is None or viewer.project_id is not None:
            return
        viewer.chosen_id = chosen
        if not places and not route.startswith(("api/", "ajax-api/", "admin/")):
            viewer.narrowed_to = chosen if chosen in viewer.roles else None


def subject_of(route: str, places: dict[str, Any]) -> int | None:
    """Return the project of what an address names; None if it names nothing of a project."""
    for pattern, model, place in SUBJECTS:
        if pattern.match(route):
            path: str = model.PROJECT  # type: ignore[attr-defined]
            rows: Any = model._default_manager.filter(**{place: places[place]})
            found: int | None = rows.values_list(path, flat=True).first()
            return found
    return _of_administration(route, places)


def _of_administration(route: str, places: dict[str, Any]) -> int | None:
    match = re.match(r"admin/(\w+)/(\w+)/<path:object_id>/", route)
    model = apps.get_model(match[1], match[2]) if match else None
    path = getattr(model, "PROJECT", "")
    pk = str(places.get("object_id", ""))
    if model is None or not path.endswith("project") or not pk.isdecimal():
        return None
    found: int | None = model._default_manager.filter(pk=pk).values_list(path, flat=True).first()
    return found
