"""The editor of dashboards, and what a page shows of their panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.http import QueryDict
from django.urls import reverse
from django.utils.safestring import SafeString

from parlab.lab.models import Dashboard, Report
from parlab.lab.services import storable
from parlab.lab.services.pages.dashboards import HEIGHTS, KINDS, MAX_PANELS, MAX_TEXT, WIDTHS, Panel
from parlab.publishing.drawn import live_page
from parlab.publishing.resolve import Experiments
from parlab.reports.directives import directive


def panels_of_post(post: QueryDict) -> list[Panel]:
    """Read the panels of the form."""
    widths, heights = dict(WIDTHS), dict(HEIGHTS)
    rows = zip(post.getlist("title"), post.getlist("text"), post.getlist("width"), post.getlist("height"), strict=False)
    return [
        Panel(
            storable.text(title).strip()[:120],
            storable.text(text).replace("\r\n", "\n")[:MAX_TEXT],
            width if width in widths else "half",
            height if height in heights else "usual",
        )
        for title, text, width, height in rows
    ][:MAX_PANELS]


def rearranged(panels: Sequence[Panel], action: str, place: int) -> list[Panel]:
    """Return the panels after one was moved, resized, copied or removed."""
    result = list(panels)
    if not 0 <= place < len(result):
        return result
    if action == "remove":
        del result[place]
    elif action == "copy":
        result.insert(place + 1, replace(result[place], title=f"{result[place].title} (copy)"[:120]))
    elif action in ("up", "down"):
        panel = result.pop(place)
        result.insert(max(0, place - 1) if action == "up" else place + 1, panel)
    elif action == "wider":
        names = [name for name, _ in WIDTHS]
        result[place] = replace(result[place], width=names[(names.index(result[place].width) + 1) % len(names)])
    return result


def as_report(dashboard: Dashboard) -> Report:
    """Return an unsaved report for resolving the directives of panels."""
    return Report(title=dashboard.name, slug=f"dashboard-{dashboard.pk}", experiment=dashboard.experiment)


def panel_body(dashboard: Dashboard, panel: Panel, loaded: Experiments) -> SafeString | str:
    """Return the content of a panel other than a single figure as HTML, or the problem with its text.

    All panels of a page share what is `loaded`.
    """
    url = reverse("dashboard-figure", args=[dashboard.pk])
    page = live_page(as_report(dashboard), panel.text, url, loaded)
    return page.problem or page.body


def figure_problem(panel: Panel) -> str:
    """Return what is wrong with the directive of a panel with a figure; empty for a valid one."""
    return directive(panel.directive).problem or ""


def editor_choices() -> dict[str, Any]:
    """Return the choices of the editor."""
    return {"widths": WIDTHS, "heights": HEIGHTS, "kinds": [(kind, title) for kind, (title, _) in KINDS.items()]}
