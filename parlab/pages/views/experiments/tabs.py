"""The tabs of an experiment: charts, table, time, comparison, configuration, reports; and what they poll."""

from __future__ import annotations

from typing import cast

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET

from parlab.lab.models import Experiment
from parlab.lab.services.pages.panel_layouts import layout_of
from parlab.pages.reads.experiment_page import TABS, ExperimentPage
from parlab.pages.reads.experiment_panels import Grid
from parlab.pages.reads.saved_views import default_address
from parlab.pages.views.partial import UNCHANGED


def _page(request: HttpRequest, slug: str) -> ExperimentPage:
    experiment = get_object_or_404(Experiment.objects.select_related("owner"), slug=slug)
    return ExperimentPage(experiment, request.GET)


@require_GET
def charts(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the panels of an experiment."""
    page = _page(request, slug)
    if default := default_address(request):
        return redirect(default)
    context = page.context("experiment")
    if page.runs:
        layout = layout_of(user=cast(User, request.user), experiment=page.experiment)
        context["panels"] = Grid(page.experiment, page.runs, page.listed, request.GET.dict()).panels(layout)
    return render(request, "experiment/charts.html", context)


@require_GET
def live(request: HttpRequest, slug: str) -> HttpResponse:
    """Answer a poll with the list of runs and the answer, or with nothing if they have not changed."""
    page = _page(request, slug)
    if request.GET.get("seen") == page.seen:
        return HttpResponse(status=UNCHANGED)
    tab = request.GET.get("tab", "")
    if tab not in dict(TABS):
        raise Http404(f"Unknown tab {tab}.")
    return render(request, "experiment/live.html", page.context(tab))
