"""Parts of the page frame: the main menu, the contents of a long page, sortable column headings."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django import template
from django.template.base import Parser, Token
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html, format_html_join, strip_tags
from django.utils.safestring import SafeString

from parlab.lab.services.pages.list_columns import Column
from parlab.pages.reads.saved_views import views_of

register = template.Library()


class Entry(NamedTuple):
    """A link of the main menu, shown if its page is installed and the user may open it."""

    section: str
    title: str
    urls: tuple[str, ...]
    """URL names of the page; the first that exists is used."""
    key: str
    """The key that opens the page after `g`."""
    permission: str = ""
    is_for_staff: bool = False


RAIL = (
    Entry("home", "Home", ("home",), "h"),
    Entry("experiments", "Experiments", ("experiments",), "e"),
    Entry("compare", "Compare", ("compare",), "c"),
    Entry("dashboards", "Dashboards", ("dashboards",), "d"),
    Entry("plan", "Plan", ("plan",), "p"),
    Entry("simulate", "Simulate", ("simulate",), "s"),
    Entry("tune", "Tune", ("tune", "studies"), "t"),
    Entry("reports", "Reports", ("reports",), "r"),
    Entry("questions", "Questions", ("questions",), "q"),
    Entry("watch", "Watch", ("watches",), "w"),
    Entry("nodes", "Nodes", ("nodes",), "n"),
    Entry("import", "Import", ("import",), "i", "lab.add_run"),
    Entry("admin", "Admin", ("admin:index",), "a", is_for_staff=True),
)


@register.inclusion_tag("pages/rail.html", takes_context=True)
def rail(context: template.Context) -> dict[str, Any]:
    """Return the links of the main menu."""
    user = context.get("user")
    entries = []
    for entry in RAIL:
        allowed = (not entry.permission or (user and user.has_perm(entry.permission))) and (
            not entry.is_for_staff or (user and user.is_staff)
        )
        if allowed and (url := _first(entry.urls)):
            entries.append((entry, url))
    return {"entries": entries, "section": context.get("section")}


def _first(names: tuple[str, ...]) -> str:
    for name in names:
        try:
            return reverse(name)
        except NoReverseMatch:
            continue
    return ""


_HEADING = re.compile(r'<h2 id="([\w-]{1,80})"[^>]{0,200}>(.{1,400}?)</h2>', re.DOTALL)
FEWEST_HEADINGS = 3
"""A page with fewer headings needs no contents."""


class _Contents(template.Node):
    """The part of a page between `contents` and `endcontents`, after links to its headings."""

    def __init__(self, nodes: template.NodeList) -> None:
        self.nodes = nodes

    def render(self, context: template.Context) -> SafeString:
        page = self.nodes.render(context)
        # Titles are part of the rendered page, so their special characters are escaped already.
        headings = [(name, SafeString(" ".join(strip_tags(title).split()))) for name, title in _HEADING.findall(page)]
        if len(headings) < FEWEST_HEADINGS:
            return page
        links = format_html_join("", '<a href="#{}">{}</a>', headings)
        return format_html('<nav class="contents" aria-label="On this page">{}</nav>{}', links, page)


@register.tag
def contents(parser: Parser, _token: Token) -> template.Node:
    """List the headings of a part of a page before it: {% contents %}...{% endcontents %}."""
    nodes = parser.parse(("endcontents",))
    parser.delete_first_token()
    return _Contents(nodes)


@register.inclusion_tag("pages/saved_views.html", takes_context=True)
def saved_views(context: template.Context) -> dict[str, Any]:
    """Show the saved views of this page, and the form that saves the present one."""
    request = context["request"]
    return {
        "request": request,
        "views": views_of(request),
        "path": request.path,
        "address": request.get_full_path(),
        "may_save": request.user.has_perm("pages.add_savedview"),
        "csrf_token": context.get("csrf_token"),
    }


@register.simple_tag(takes_context=True)
def sort_head(context: template.Context, column: Column) -> SafeString:
    """Render a heading that sorts by its column, descending first, ascending at the second click."""
    kind = SafeString(' class="number"') if column.is_number else ""
    if not column.is_sortable:
        return format_html('<th scope="col"{}>{}</th>', kind, column.title)
    listed = context["list"]
    is_sorted = listed.sort.removeprefix("-") == column.name
    descending = listed.sort.startswith("-")
    next_sort = column.name if is_sorted and descending else f"-{column.name}"
    order = ("descending" if descending else "ascending") if is_sorted else ""
    url = urlencode({"q": listed.filter.text, "show": context["show"], "sort": next_sort})
    return format_html(
        '<th scope="col"{}{}><a class="sort" id="sort-{}" href="?{}">{}{}</a></th>',
        kind,
        format_html(' aria-sort="{}"', order) if order else "",
        column.name,
        url,
        column.title,
        SafeString(' <span class="arrow" aria-hidden="true"></span>') if is_sorted else "",
    )
