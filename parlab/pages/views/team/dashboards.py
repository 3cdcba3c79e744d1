"""Dashboards: list, page, editor, and the figures of their panels."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple, cast
from urllib.parse import quote

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.safestring import SafeString
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from parlab.lab.models import Dashboard, Experiment
from parlab.lab.selectors.lists import tag_names
from parlab.lab.services.access.rights import may_change as may_change_row
from parlab.lab.services.access.rights import require_change
from parlab.lab.services.pages import dashboards as work
from parlab.lab.services.pages.dashboards import Panel
from parlab.lab.services.pages.panel_layouts import MAX_NAME, placed_panels
from parlab.pages.reads import dashboards as editor
from parlab.pages.reads.pinned_panels import directive_of
from parlab.pages.views.team.reports import figure_of
from parlab.publishing.resolve import Experiments
from parlab.reports.directives import directive
from parlab.whole_numbers import whole_number

MAX_EXPERIMENTS = 500
RANGES = ((0, "all time"), (24, "last 24 h"), (168, "last 7 days"), (672, "last 4 weeks"))
"""Time ranges in hours."""
REFRESHES = ((0, "never"), (10, "10 s"), (60, "1 min"), (300, "5 min"))
"""Intervals in seconds."""


class PanelView(NamedTuple):
    """A panel with what the template shows of it."""

    panel: Panel
    name: str
    json: str
    """Address of its figure; empty for other panels."""
    csv: str
    body: SafeString | str
    part: str = ""
    """Address of its part of a page, which is read after the page; empty for other panels."""


@require_GET
def dashboards(request: HttpRequest) -> HttpResponse:
    rows = Dashboard.objects.select_related("experiment", "owner").order_by("name")
    context = {"section": "dashboards", "dashboards": rows, "experiments": _experiments()}
    return render(request, "pages/dashboards/dashboards.html", context)


def _experiments() -> list[tuple[str, str]]:
    return list(Experiment.objects.in_use().values_list("slug", "name")[:MAX_EXPERIMENTS])


@require_POST
@permission_required("pages.add_dashboard", raise_exception=True)
def new(request: HttpRequest) -> HttpResponse:
    """Create a dashboard and open its editor."""
    experiment = Experiment.objects.filter(slug=request.POST.get("experiment", "").replace("\0", "")).first()
    name = request.POST.get("name", "").replace("\0", "").strip() or (f"{experiment.name}" if experiment else "")
    try:
        dashboard = work.dashboard_create(name=name, experiment=experiment, user=cast(User, request.user))
    except ValueError as error:
        messages.error(request, f"Nothing was created: {error}.")
        return redirect("dashboards")
    return redirect("dashboard-edit", dashboard.pk)


@require_GET
def dashboard(request: HttpRequest, pk: int) -> HttpResponse:
    """Show a dashboard; `?experiment=` fills its variable, `?wall=1` shows it without the frame, page after page."""
    shown = _find(pk)
    panels, chosen = work.panels_of(shown), _chosen(request)
    loaded: Experiments = {}
    names = work.panel_names(panels)
    may_change = request.user.has_perm("pages.change_dashboard") and may_change_row(request.user, shown)
    context = {
        "section": "dashboards",
        "dashboard": shown,
        "panels": [_view(shown, panel, names[place], loaded, chosen) for place, panel in enumerate(panels)],
        "address": request.build_absolute_uri(),
        "is_wall": bool(request.GET.get("wall")),
        "chosen": chosen,
        "tags": tag_names(),
        "ranges": RANGES,
        "refreshes": REFRESHES,
        "models": editor.models_of(shown, panels, chosen),
        "experiments": _experiments(),
        "layout_url": _layout_url(shown) if may_change else "",
        "offers": editor.offers() if may_change else [],
        "new": work.NEW,
    }
    return render(request, "pages/dashboards/dashboard.html", context)


def _chosen(request: HttpRequest) -> editor.Chosen:
    """Return the values of the variables in the address."""
    slug = request.GET.get("experiment", "").replace("\0", "")
    experiment = get_object_or_404(Experiment, slug=slug) if slug else None
    hours = whole_number(request.GET.get("hours", ""), 5) or 0
    tag, model = (request.GET.get(name, "").replace("\0", "")[:80] for name in ("tag", "model"))
    seconds = whole_number(request.GET.get("refresh", ""), 5) or 0
    return editor.Chosen(experiment, tag, hours, model, seconds if seconds in dict(REFRESHES) else 0)


def _layout_url(dashboard: Dashboard) -> str:
    return f"{reverse('dashboard-layout', args=[dashboard.pk])}?revision={dashboard.revision}"


def _find(pk: int) -> Dashboard:
    return get_object_or_404(Dashboard.objects.select_related("experiment", "owner"), pk=pk)


def _view(dashboard: Dashboard, panel: Panel, name: str, loaded: Experiments, chosen: editor.Chosen) -> PanelView:
    shown = replace(panel, text=editor.filled(panel.text, chosen.experiment))
    if shown.directive and not editor.figure_problem(shown):
        url = f"{reverse('dashboard-figure', args=[dashboard.pk])}?d={quote(shown.directive)}"
        url += f"&{chosen.query}" if chosen.query else ""
        return PanelView(panel, name, url, f"{url}&format=csv", "")
    if shown.part:
        url = f"{reverse('dashboard-figure', args=[dashboard.pk])}?d={quote(shown.part)}"
        return PanelView(panel, name, "", "", "", url)
    return PanelView(panel, name, "", "", editor.panel_body(dashboard, shown, loaded, chosen))


@require_GET
def preview(request: HttpRequest, pk: int) -> HttpResponse:
    """Show a panel of `?kind=` before it is added, `?of=` another experiment, with the variables of the page."""
    shown, kind = _find(pk), request.GET.get("kind", "")
    if kind not in work.KINDS:
        raise Http404(f"unknown kind of panel {kind[:40]!r}")
    slug = request.GET.get("of", "").replace("\0", "")
    panel = work.new_panel(kind, Experiment.objects.filter(slug=slug).first() if slug else None)
    view = _view(shown, panel, "preview", {}, _chosen(request))
    return render(request, "pages/dashboards/dashboard_panel.html", {"view": view, "name": "preview"})


@require_GET
def figure(request: HttpRequest, pk: int) -> HttpResponse:
    """Return the figure of a directive, with `&format=csv` its numbers, or the markup of a part of a page."""
    chosen = _chosen(request)
    return figure_of(editor.as_report(_find(pk), chosen.experiment), request, f"dashboard-{pk}", chosen.only)


@require_POST
@permission_required("pages.change_dashboard", raise_exception=True)
def layout(request: HttpRequest, pk: int) -> HttpResponse:
    """Store the order and the sizes of panels that were dragged, and add or remove some."""
    edited = _find(pk)
    require_change(request.user, edited)
    try:
        asked = json.loads(request.body)
        placed = placed_panels(asked["panels"])
    except (ValueError, TypeError, KeyError):
        return HttpResponseBadRequest("the layout is no JSON object with panels")
    try:
        saved = work.dashboard_arrange(
            dashboard=edited,
            placed=[(panel.name, panel.width, panel.height) for panel in placed],
            revision=_whole_number(request.GET.get("revision", "")),
        )
    except work.Outdated as error:
        messages.error(request, f"Not saved: {error}.")
        return HttpResponse(str(error), status=409)
    return HttpResponse(status=204, headers={"X-Layout-Url": _layout_url(saved)})


@require_POST
@permission_required("pages.add_dashboard", raise_exception=True)
def add(request: HttpRequest, slug: str) -> HttpResponse:
    """Add a panel of an experiment to its dashboard; the query is that of the page."""
    experiment = get_object_or_404(Experiment, slug=slug)
    text = directive_of(request.POST.get("panel", "")[:MAX_NAME], slug, request.GET)
    if not text or directive(text.strip("{} ")).problem:
        return JsonResponse({"problem": "dashboards cannot show this panel; add another one"}, status=400)
    title = request.POST.get("title", "").replace("\0", "").strip()[:120]
    try:
        dashboard = work.dashboard_add(
            experiment=experiment, title=title or "Figure", text=text, user=cast(User, request.user)
        )
    except ValueError as problem:
        return JsonResponse({"problem": str(problem)}, status=400)
    return JsonResponse({"title": dashboard.name, "url": dashboard.get_absolute_url()})


@require_http_methods(["GET", "POST"])
@permission_required("pages.change_dashboard", raise_exception=True)
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    """Arrange, resize, rename, add and remove panels; every button submits the form, *Save* stores it."""
    edited = _find(pk)
    require_change(request.user, edited)
    panels, name, is_default = work.panels_of(edited), edited.name, edited.is_default
    revision = str(edited.revision)
    if request.method == "POST":
        panels, is_default = editor.panels_of_post(request.POST), "default" in request.POST
        name = request.POST.get("name", "").replace("\0", "").strip()
        revision = request.POST.get("revision", "")
        action, _, place = request.POST.get("act", "").partition(":")
        if action == "save":
            return _saved(request, edited, name, panels, is_default, revision)
        panels = _changed(request, panels, action, _whole_number(place))
    context = {
        "section": "dashboards",
        "dashboard": edited,
        "name": name,
        "is_default": is_default,
        "panels": list(enumerate(panels)),
        "revision": revision,
        "experiments": _experiments(),
        "is_changed": request.method == "POST",
        **editor.editor_choices(),
    }
    return render(request, "pages/dashboards/dashboard_edit.html", context)


def _changed(request: HttpRequest, panels: list[Panel], action: str, place: int) -> list[Panel]:
    kind = request.POST.get("kind", "")
    if action == "add" and kind in work.KINDS and len(panels) < work.MAX_PANELS:
        experiment = Experiment.objects.filter(slug=request.POST.get("of", "").replace("\0", "")).first()
        return [*panels, work.new_panel(kind, experiment)]
    return editor.rearranged(panels, action, place)


def _whole_number(text: str) -> int:
    number = whole_number(text)
    return -1 if number is None else number


def _saved(
    request: HttpRequest, edited: Dashboard, name: str, panels: list[Panel], is_default: bool, revision: str
) -> HttpResponse:
    try:
        number = _whole_number(revision)
        work.dashboard_save(dashboard=edited, name=name, panels=panels, is_default=is_default, revision=number)
    except ValueError as error:
        messages.error(request, f"Not saved: {error}.")
        return _go(request, reverse("dashboard-edit", args=[edited.pk]))
    messages.success(request, "Saved.")
    return _go(request, edited.get_absolute_url())


def _go(request: HttpRequest, address: str) -> HttpResponse:
    """Open another page, also from a submission by htmx, which would put it into this one."""
    if request.headers.get("HX-Request") == "true":
        return HttpResponse(status=204, headers={"HX-Redirect": address})
    return redirect(address)


@require_POST
@permission_required("pages.delete_dashboard", raise_exception=True)
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    deleted = _find(pk)
    require_change(request.user, deleted)
    deleted.delete()
    messages.success(request, f"Deleted the dashboard {deleted.name}.")
    return redirect("dashboards")


@require_GET
def of_experiment(_request: HttpRequest, slug: str) -> HttpResponse:
    """Open the default dashboard of an experiment, or list all dashboards."""
    first = Dashboard.objects.filter(experiment__slug=slug).first()
    return redirect(first) if first else redirect("dashboards")
