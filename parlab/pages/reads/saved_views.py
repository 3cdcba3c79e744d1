"""The saved views of a page, and its default."""

from __future__ import annotations

from django.http import HttpRequest

from parlab.lab.models import SavedView

_READ = "saved_views"
"""Attribute of a request that keeps its views."""


def views_of(request: HttpRequest) -> list[SavedView]:
    """Return the saved views of a page, its default first; read once for each request."""
    views: list[SavedView] | None = getattr(request, _READ, None)
    if views is None:
        views = list(SavedView.objects.filter(path=request.path))
        setattr(request, _READ, views)
    return views


def default_address(request: HttpRequest) -> str:
    """Return the address of the default view of a page that is opened without choices; empty if there is none."""
    if request.META.get("QUERY_STRING") or request.headers.get("HX-Request"):
        return ""
    return next((view.address for view in views_of(request) if view.is_default and view.address != view.path), "")
