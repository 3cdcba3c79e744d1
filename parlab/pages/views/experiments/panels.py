"""The panels of an experiment: their curves and drawings, and the layout that a person or everybody sees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET, require_POST

from parlab.charts.panels.catalogue import PANELS
from parlab.charts.panels.frame import Size
from parlab.charts.theme import Table
from parlab.lab.models import Experiment, Run
from parlab.lab.services.pages import panel_layouts
from parlab.lab.services.reports import report_add, report_create
from parlab.pages.reads.experiment_page import chosen_runs
from parlab.pages.reads.experiment_panels import Grid, panel_drawing, runs_of
from parlab.pages.reads.experiment_runs import listed_runs, shown_runs
from parlab.pages.reads.experiment_series import AXES, experiment_series, metric_of, series_rows
from parlab.pages.reads.pinned_panels import directive_of, report_of
from parlab.publishing.figures.windows import window_of
from parlab.reports.directives import directive
from parlab.whole_numbers import whole_number

from .figures import csv_response

WIDTHS, HEIGHTS = (200, 1_800), (120, 900)
"""Limits of a drawing in pixels."""


def _experiment(slug: str) -> Experiment:
    return get_object_or_404(Experiment, slug=slug)


@require_GET
def series(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the curves of all runs, `?metric=loss&x=step`.

    `only=3,5` names runs, `from` and `to` a part of the steps; `format=csv` returns all points.
    """
    runs = chosen_runs(_experiment(slug), request.GET)
    metric = request.GET.get("metric", "loss").replace("\0", "")[:200]
    if request.GET.get("format") == "csv":
        return csv_response(_with_kinds(series_rows(runs, metric), runs, metric), f"{slug}-curves.csv")
    only = {text for text in request.GET.get("only", "").split(",") if text}
    chosen = [run for run in runs if not only or str(run.number) in only]
    over = request.GET.get("x", "")
    return JsonResponse(experiment_series(chosen, metric, over if over in AXES else AXES[0], window_of(request.GET)))


def _with_kinds(rows: list[list[Any]], runs: Sequence[Run], metric: str) -> Table:
    """Return the points of a series with how those of files came about."""
    kinds = {run.number: run.series_kind(*metric_of(metric).names) for run in runs}
    header = ["run", "step", "time", metric]
    if not any(kinds.values()):
        return Table(header, rows)
    return Table([*header, f"kind of {metric}"], [[*row, kinds[row[0]]] for row in rows])


@require_GET
def panel(request: HttpRequest, slug: str, name: str) -> HttpResponse:
    """Return the drawing of a panel, `?w=440&h=226` in pixels."""
    drawn = PANELS.get(name)
    if drawn is None:
        raise Http404(f"Unknown panel {name}. The panels are {', '.join(PANELS)}.")
    runs = chosen_runs(_experiment(slug), request.GET)
    data = runs_of(listed_runs(runs, shown_runs(runs), request.GET.get("number", "")))
    if reason := drawn.needs(data):
        return HttpResponse(f"<p class='muted'>{reason}</p>")
    size = Size(_pixels(request, "w", WIDTHS, 440), _pixels(request, "h", HEIGHTS, 234))
    return HttpResponse(panel_drawing(drawn, runs, data, size))


def _pixels(request: HttpRequest, name: str, limits: tuple[int, int], default: int) -> int:
    number = whole_number(request.GET.get(name, ""), 5)
    return min(limits[1], max(limits[0], default if number is None else number))


@require_GET
def found(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the series that a search finds beyond those that the menu of panels lists, `?find=grad`."""
    experiment = _experiment(slug)
    runs = chosen_runs(experiment, request.GET)
    grid = Grid(experiment, runs, listed_runs(runs, shown_runs(runs), ""), request.GET)
    text = request.GET.get("find", "").strip()[:200]
    return render(request, "experiment/offers.html", {"offers": grid.found(text) if text else []})


@require_POST
def layout(request: HttpRequest, slug: str) -> HttpResponse:
    """Store the panels of the person, or with `all` those of everybody; without panels forget the person's."""
    experiment, user = _experiment(slug), cast(User, request.user)
    asked = _body(request)
    if asked is None:
        return HttpResponseBadRequest("the layout is no JSON object")
    if "panels" not in asked:
        panel_layouts.layout_reset(user=user, experiment=experiment)
        return HttpResponse(status=204)
    is_for_all = asked.get("all") is True
    if is_for_all and not user.has_perm("lab.change_experiment"):
        raise PermissionDenied
    placed = panel_layouts.placed_panels(asked["panels"])
    panel_layouts.layout_save(user=None if is_for_all else user, experiment=experiment, panels=placed)
    return HttpResponse(status=204)


@require_POST
@permission_required("lab.add_report", raise_exception=True)
def pin(request: HttpRequest, slug: str) -> HttpResponse:
    """Add a panel to the newest report about the experiment, or to a first one; the query is that of the page."""
    experiment, user = _experiment(slug), cast(User, request.user)
    text = directive_of(request.POST.get("panel", "")[: panel_layouts.MAX_NAME], slug, request.GET)
    if not text or directive(text.strip("{} ")).problem:
        return JsonResponse({"problem": "reports cannot show this panel; pin another one"}, status=400)
    report = report_of(experiment, user)
    try:
        if report is None:
            report = report_create(title=experiment.name, text=f"{text}\n", experiment=experiment, user=user)
        else:
            report = report_add(report=report, text=text, user=user)
    except ValueError as problem:
        return JsonResponse({"problem": str(problem)}, status=400)
    return JsonResponse({"title": report.title, "url": report.get_absolute_url()})


def _body(request: HttpRequest) -> dict[str, Any] | None:
    try:
        asked = json.loads(request.body)
    except ValueError:
        return None
    return asked if isinstance(asked, dict) else None
