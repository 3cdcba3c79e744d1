"""Parts of pages in dashboards and reports: a picture, a table or a sentence, as the page shows it to who asks.

A page marks its parts with the template tag `part`. To show one elsewhere, the page answers a request of the same
person, so that a part is drawn by the same code and shows nothing that the page would not.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import unescape
from typing import Any
from urllib.parse import urlsplit

import nh3
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.urls import Resolver404, ResolverMatch, resolve
from django.utils.html import strip_tags
from django_htmx.middleware import HtmxDetails

from parlab.charts.theme import Drawing
from parlab.lab.models.access.viewer import current_viewer
from parlab.reports.blocks import PartBlock

SHEETS: Mapping[str, tuple[str, ...]] = {
    "nodes": ("cluster",),
    "node": ("cluster",),
    "plan": ("schedules", "plan"),
    "plan-layouts": ("schedules", "plan"),
    "plan-versus": ("schedules", "plan"),
    "watches": ("watch",),
    "watch-alert": ("watch",),
    "compare": ("compare",),
    "experiment-compare": ("compare",),
    "run": ("run",),
    "run-time": ("run", "time"),
    "study": ("plan",),
}
"""The pages with parts, by the name of their address, and their own style sheets."""
FIGURES = frozenset({
    "compare-figure", "network-figure", "plan-figure", "run-engine-figure", "run-time-figure", "run-traces-figure",
    "study-figure", "watch-figure",
})  # fmt: skip
"""The names of addresses that answer with a figure."""
_SVG = {
    "a", "circle", "clipPath", "defs", "ellipse", "g", "line", "path", "pattern", "polygon", "polyline", "rect", "svg",
    "text", "title", "tspan",
}  # fmt: skip
_HTML = {
    "a", "b", "br", "caption", "code", "dd", "dl", "div", "dt", "em", "h2", "h3", "h4", "i", "li", "meter", "p",
    "section", "small", "span", "strong", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul",
}  # fmt: skip
_ATTRIBUTES = {
    "class", "colspan", "data-colour", "role", "rowspan", "scope", "tabindex", "title", "x", "y", "x1", "x2", "y1",
    "y2", "cx", "cy", "r", "rx", "ry", "d", "dx", "dy", "points", "width", "height", "viewBox", "preserveAspectRatio",
    "transform", "clip-path", "clipPathUnits", "patternUnits", "patternTransform", "id", "text-anchor", "max", "min",
    "value", "fill", "stroke", "opacity", "aria-label", "aria-hidden",
}  # fmt: skip


class PageRequest(HttpRequest):
    """A request for the parts of a page; the tag `part` puts what it renders into `parts`."""

    def __init__(self, address: str, match: ResolverMatch, user: Any) -> None:
        super().__init__()
        path, _, query = address.partition("?")
        self.method, self.path, self.path_info = "GET", path, path
        self.GET = QueryDict(query)
        self.META = {"QUERY_STRING": query, "SERVER_NAME": "localhost", "SERVER_PORT": "80", "REQUEST_METHOD": "GET"}
        self.user, self.resolver_match = user, match
        self.htmx = HtmxDetails(self)
        self.parts: dict[str, str] = {}


class DrawnResponse(HttpResponse):
    """The JSON of a figure, with what it was made of."""

    def __init__(self, drawing: Drawing) -> None:
        super().__init__(drawing.to_json(), content_type="application/json")
        self.drawing = drawing


def page_part(name: str, address: str, title: str) -> PartBlock:
    """Return a part of a page; raises ValueError with the reason why the person who asks does not see it."""
    request, _ = _answered(address, SHEETS)
    path, match = request.path, request.resolver_match
    assert match is not None
    if name not in request.parts:
        names = ", ".join(request.parts) or "nothing that can be shown elsewhere"
        raise ValueError(f"unknown part {name!r} of {path}; it has {names}")
    html = cleaned(request.parts[name])
    if not html.strip():
        raise ValueError(f"{path} shows nothing under {name!r} now")
    text = " ".join(unescape(strip_tags(html)).split())
    shown = title or name.replace("-", " ").capitalize()
    return PartBlock(title=shown, html=html, text=text, sheets=list(SHEETS[str(match.url_name)]), page=address)


def page_figure(address: str) -> Drawing:
    """Return the figure of an address; raises ValueError with the reason why the person who asks does not see it."""
    _, response = _answered(address, FIGURES)
    if not isinstance(response, DrawnResponse):
        raise ValueError(f"{address} has no figure")
    return response.drawing


def _answered(address: str, names: Any) -> tuple[PageRequest, HttpResponse]:
    """Let a page answer the person who asks; `names` are those of the addresses that may be asked for."""
    parts = urlsplit(address)
    try:
        match = resolve(parts.path)
    except Resolver404:
        match = None
    if match is None or parts.netloc or match.url_name not in names or match.namespaces:
        raise ValueError(f"unknown page {address!r}; use Add to dashboard on the page itself")
    viewer = current_viewer()
    if viewer is None or viewer.experiments is not None or not viewer.user.is_authenticated:
        raise ValueError(f"{parts.path} is shown only to people who have logged in")
    request = PageRequest(address, match, viewer.user)
    try:
        response = match.func(request, *match.args, **match.kwargs)
    except Http404 as problem:
        raise ValueError(f"{parts.path} was deleted, or belongs to a project that you do not see") from problem
    except PermissionDenied as problem:
        raise ValueError(f"you may not see {parts.path}") from problem
    if response.status_code != 200:
        raise ValueError(f"{parts.path} leads to another page; use Add to dashboard on that page")
    return request, response


def cleaned(html: str, *, with_links: bool = True) -> str:
    """Return the markup of a part without what acts on its page: forms, polls, scripts; in files also links."""
    return nh3.clean(
        html,
        tags=_SVG | _HTML,
        attributes={"*": _ATTRIBUTES} | ({"a": {"href"}} if with_links else {}),
        clean_content_tags={"button", "form", "select", "script", "style", "textarea", "summary"},
        url_schemes=set(),
        link_rel=None,
    )
