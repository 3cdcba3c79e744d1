"""Saved views: named addresses of lists, sweeps and comparisons, one of them the default of its page."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.http import QueryDict
from django.urls import Resolver404, resolve

from parlab.lab.models import Experiment, SavedView
from parlab.lab.models.access.viewer import home_project_id
from parlab.lab.services import storable
from parlab.lab.services.access.rights import may_change
from parlab.whole_numbers import whole_number

from .panel_layouts import Placed, layout_of, placed_panels

PAGES = ("experiments", "experiment", "experiment-table", "experiment-compare", "compare")
"""URL names of the pages whose views can be saved."""
PANELS = "experiment"
"""The page whose panels a view keeps."""
PLAIN = "plain"
"""A parameter that opens a page without its default view."""
VIEW = "view"
"""A parameter that names the view whose panels are shown."""
_LEFT_OUT = ("page", "seen", PLAIN, VIEW)
MAX_QUERY = 4_000


@transaction.atomic
def view_save(*, name: str, address: str, is_default: bool, user: User) -> SavedView:
    """Save an address under a name; the same name of the same page is replaced, unless it belongs to another person."""
    name = storable.text(name).strip()[:80]
    if not name:
        raise ValueError("the view needs a name; enter one")
    path, _, text = address.partition("?")
    try:
        page = resolve(path)
    except Resolver404:
        page = None
    if page is None or page.url_name not in PAGES:
        raise ValueError(f"{path[:80]} has no views; save a list, an experiment or a comparison")
    query = _query(text)
    slug = page.kwargs.get("slug", "")
    project = _project_of(slug)
    panels = _panels_of(user, slug, path, QueryDict(storable.text(text)[:MAX_QUERY])) if page.url_name == PANELS else []
    of_page = SavedView.objects.filter(path=path, project=project)
    earlier = of_page.filter(name=name).first()
    if earlier and not may_change(user, earlier):
        raise ValueError(f"the name {name} is taken by {earlier.owner.get_username()}; choose another")
    if is_default:
        default = of_page.filter(is_default=True).exclude(name=name).first()
        if default and not may_change(user, default):
            owner = default.owner.get_username()
            raise ValueError(f"view {default} of {owner} is the default of this page; ask {owner} to change that")
        of_page.filter(is_default=True).update(is_default=False)
    view, _ = SavedView.objects.update_or_create(
        project_id=project,
        path=path,
        name=name,
        defaults={"query": query, "is_default": is_default, "panels": panels},
        create_defaults={"query": query, "is_default": is_default, "panels": panels, "owner": user},
    )
    return view


def _panels_of(user: User, slug: str, path: str, query: QueryDict) -> list[dict[str, Any]]:
    """Return the panels that a person sees: those of the view that the address names, else as they are arranged."""
    shown = panels_of_view(path, query)
    if shown is None and (experiment := Experiment.objects.filter(slug=slug).first()):
        shown = layout_of(user=user, experiment=experiment)
    return [{"name": panel.name, "w": panel.width, "h": panel.height} for panel in shown or ()]


def panels_of_view(path: str, query: QueryDict) -> list[Placed] | None:
    """Return the panels of the view that an address names; None without panels, or for a view of another page."""
    number = whole_number(query.get(VIEW, ""), 9)
    view = None if number is None else SavedView.objects.filter(pk=number, path=path).first()
    return placed_panels(view.panels) if view and view.panels else None


def _project_of(slug: str) -> int:
    """Return the project of the experiment that a page is about, else that of new things."""
    found = Experiment.objects.filter(slug=slug).values_list("project", flat=True).first() if slug else None
    return home_project_id() if found is None else found


def _query(text: str) -> str:
    parameters = QueryDict(storable.text(text)[: 2 * MAX_QUERY], mutable=True)
    for name in _LEFT_OUT:
        parameters.pop(name, None)
    query = parameters.urlencode()
    if len(query) > MAX_QUERY:
        raise ValueError(f"the address has {len(query)} characters; views may have up to {MAX_QUERY}")
    return query
