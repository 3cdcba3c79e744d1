"""Parts of the page frame: the main menu, icons, the contents of a long page, sortable column headings."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django import template
from django.conf import settings
from django.template.base import Parser, Token
from django.urls import reverse
from django.utils.html import format_html, format_html_join, strip_tags
from django.utils.safestring import SafeString

from parlab.lab.models.access.viewer import SeenProject
from parlab.lab.services.access.rights import viewer_for
from parlab.lab.services.pages.list_columns import Column
from parlab.pages.reads.frame_counts import FrameCounts, frame_counts
from parlab.pages.reads.inbox import inbox_unread
from parlab.pages.reads.saved_views import views_of

register = template.Library()


class Entry(NamedTuple):
    """An entry of the main menu, and the pages that belong to it."""

    name: str
    title: str
    icon: str
    pages: tuple[Page, ...]
    """The first is the one that the entry opens."""
    is_on_phones: bool = True

    @property
    def key(self) -> str:
        """The key that opens the page after `g`."""
        return self.name[0]


class Page(NamedTuple):
    """A page that an entry of the main menu leads to."""

    section: str
    """What a view says in its context: the page that is open."""
    title: str
    url: str
    permission: str = ""
    is_for_staff: bool = False
    is_for_several: bool = False
    """Whether it is shown only to people who see several projects."""
    within: str = ""
    """The section whose page this one is another way to do: Simulate predicts, as Predict does."""

    def may_open(self, user: Any) -> bool:
        if self.is_for_staff:
            return bool(user and user.is_staff)
        if self.is_for_several:
            return bool(user and user.is_authenticated and len(projects_of(user)) > 1)
        return not self.permission or bool(user and user.has_perm(self.permission))


ENTRIES = (
    Entry("home", "Home", "house", (Page("home", "Home", "home"),)),
    Entry("experiments", "Experiments", "chart-line", (Page("experiments", "Experiments", "experiments"),)),
    Entry(
        "plan",
        "Plan",
        "route",
        (
            Page("plan", "Predict", "plan"),
            Page("simulate", "Simulate", "simulate", within="plan"),
            Page("tune", "Search", "tune"),
            Page("questions", "Try", "questions"),
        ),
    ),
    Entry("watch", "Watch", "activity", (Page("watch", "Watch", "watches"),)),
    Entry(
        "reports",
        "Reports",
        "file-text",
        (Page("reports", "Reports", "reports"), Page("dashboards", "Dashboards", "dashboards")),
        is_on_phones=False,
    ),
    Entry("cluster", "Cluster", "layout-grid", (Page("nodes", "Cluster", "nodes"),), is_on_phones=False),
)
SETTINGS = Entry(
    "settings",
    "Settings",
    "settings",
    (
        Page("account", "Account and tokens", "account"),
        Page("notifications", "Notifications", "notifications"),
        Page("links", "Public links", "links", "lab.add_reportlink"),
        Page("projects", "Projects", "projects", is_for_several=True),
        Page("formats", "Log formats", "log-formats", "lab.add_run"),
        Page("rules", "Rules of findings", "rules"),
        Page("api", "API reference", "api:root"),
        Page("audit", "Audit log", "audit", "auth.change_user"),
        Page("admin", "Administration", "admin:index", is_for_staff=True),
    ),
    is_on_phones=False,
)
_LONGEST_PLAN = 4_000
_SAME = {"compare": "experiments", "import": "experiments", "connect": "experiments", "inbox": "home"}
"""Pages without an entry of their own, and the one that they belong to."""


class Shown(NamedTuple):
    """An entry as the frame shows it."""

    entry: Entry
    url: str
    is_open: bool
    number: int = 0
    is_hot: bool = False
    """Whether the count asks for attention."""


@register.simple_tag(takes_context=True)
def frame(context: template.Context, section: str = "") -> dict[str, Any]:
    """Return what the frame shows: entries, settings, and the pages beside the open one."""
    user, section = context.get("user"), section or context.get("section") or ""
    section = _SAME.get(section, section)
    counts = frame_counts() if user and user.is_authenticated else FrameCounts()
    numbers = {
        "experiments": (counts.experiments, False),
        "watch": (counts.alerts, counts.alerts > 0),
        "cluster": (counts.nodes, False),
    }
    entries = [
        Shown(entry, reverse(entry.pages[0].url), _is_open(entry, section), *numbers.get(entry.name, (0, False)))
        for entry in ENTRIES
    ]
    opened = next((entry for entry in (*ENTRIES, SETTINGS) if _is_open(entry, section)), None)
    return {
        "entries": entries,
        "settings": Shown(SETTINGS, reverse("account"), opened == SETTINGS),
        "opened": opened,
        **_beside(context, opened, section),
        "section": section,
        "below": _below(opened, section),
        "projects": projects_of(user) if user and user.is_authenticated else [],
    }


def _beside(context: template.Context, opened: Entry | None, section: str) -> dict[str, Any]:
    """Return the pages beside the open one, and the ways within its step; the steps of Plan hand on the plan."""
    are_steps = bool(opened and opened.name == "plan")
    plan = _carried_plan(context, section) if are_steps else ""
    pages = [page for page in (opened.pages if opened else ()) if page.may_open(context.get("user"))]
    shown = next((page for page in pages if page.section == section), None)
    step = (shown.within or shown.section) if shown else ""
    among = [(page, _with_plan(page, plan), page.section == step) for page in pages if not page.within]
    ways = [(page, _with_plan(page, plan), page.section == section) for page in pages if _is_way(page, step)]
    return {
        "among": among if len(among) > 1 else [],
        "are_steps": are_steps,
        "ways": ways if len(ways) > 1 else [],
    }


def _is_way(page: Page, step: str) -> bool:
    return bool(step) and step in (page.section, page.within)


def _carried_plan(context: template.Context, section: str) -> str:
    """Return the query of the plan that the steps of Plan hand on to each other."""
    request = context.get("request")
    if request is None:
        return ""
    return str(request.GET.urlencode() if section == "plan" else request.GET.get("plan", ""))[:_LONGEST_PLAN]


def _with_plan(page: Page, plan: str) -> str:
    """Return the address of a page; Predict opens the plan itself."""
    address = reverse(page.url)
    if not plan:
        return address
    return f"{address}?{plan if page.section == 'plan' else urlencode({'plan': plan})}"


def projects_of(user: Any) -> list[SeenProject]:
    """Return the projects that a person can choose from."""
    return viewer_for(user).seen


def _below(opened: Entry | None, section: str) -> Page | None:
    """Return the open page if it is not the one that its entry opens: Simulate is a page below Plan."""
    pages = opened.pages if opened else ()
    first = opened == SETTINGS or (pages and pages[0].section != section)
    return next((page for page in pages if page.section == section and first), None)


def _is_open(entry: Entry, section: str) -> bool:
    return section in {page.section for page in entry.pages}


_DRAWING = re.compile(r"<svg[^>]*>(.*)</svg>", re.DOTALL)


@cache
def _drawing(name: str) -> SafeString:
    path = Path(settings.SHIPPED_DIR) / "static" / "vendor" / "lucide" / f"{name}.svg"
    found = _DRAWING.search(path.read_text(encoding="utf-8"))
    # A file of Lucide that is shipped with parlab, so it needs no escaping.
    return SafeString(" ".join(found[1].split()) if found else "")


@register.simple_tag
def icon(name: str, size: str = "") -> SafeString:
    """Return a drawing of Lucide; it repeats what the text beside it says."""
    kind = f"ic {size}" if size else "ic"
    return format_html('<svg class="{}" viewBox="0 0 24 24" aria-hidden="true">{}</svg>', kind, _drawing(name))


@register.filter
def admin_crumbs(shown: str) -> SafeString:
    """Return the place that a page of Django names, as the other pages show it: its own word for the start is Home."""
    inside = re.sub(r"</?div[^>]*>", "", shown).replace(">Home<", ">Administration<", 1)
    *above, last = [part.strip() for part in inside.split("&rsaquo;")]
    links = "".join(part.replace("<a ", '<a class="par" ', 1) + '<span class="sep">/</span>' for part in above)
    # Parts of a rendered page, so their special characters are escaped already.
    return SafeString(f"{links}<b>{strip_tags(last)}</b>")


@register.simple_tag(takes_context=True)
def inbox_count(context: template.Context) -> int:
    """Return how many items of the inbox the user has not read."""
    user = context.get("user")
    return inbox_unread(user) if user and user.is_authenticated else 0


@register.filter
def address_words(path: str) -> str:
    """Return the words of an address to search for: `/experiments/bert-large/x/` as `bert large`."""
    parts = [part for part in re.findall(r"[\w-]+", path) if part not in _ROUTES and not part.isdecimal()]
    return " ".join(parts[0].replace("-", " ").split()[:6]) if parts else ""


_ROUTES = frozenset(("experiments", "runs", "reports", "watch", "tune", "nodes", "import", "dashboards", "pages"))
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


@register.inclusion_tag("pages/parts/saved_views.html", takes_context=True)
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
    kept = {"columns": stated} if (stated := context.get("stated_columns")) else {}
    url = urlencode({"q": listed.filter.text, "show": context["show"], "sort": next_sort, **kept})
    return format_html(
        '<th scope="col"{}{}><a class="sort" id="sort-{}" href="?{}">{}{}</a></th>',
        kind,
        format_html(' aria-sort="{}"', order) if order else "",
        column.name,
        url,
        column.title,
        SafeString(' <span class="arrow" aria-hidden="true"></span>') if is_sorted else "",
    )
