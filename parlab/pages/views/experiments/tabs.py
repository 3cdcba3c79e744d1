"""The tabs of an experiment: charts, table, time, comparison, configuration, reports; and what they poll."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET

from parlab.lab.models import Experiment
from parlab.pages.reads.experiment_page import TABS, ExperimentPage, chosen_runs
from parlab.pages.reads.experiment_series import AXES, experiment_series
from parlab.pages.reads.saved_views import default_address
from parlab.pages.views.partial import UNCHANGED
from parlab.publishing.figures.windows import window_of


def _page(request: HttpRequest, slug: str) -> ExperimentPage:
    experiment = get_object_or_404(Experiment.objects.select_related("owner"), slug=slug)
    return ExperimentPage(experiment, request.GET)


@require_GET
def charts(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the panels of an experiment."""
    page = _page(request, slug)
    if default := default_address(request):
        return redirect(default)
    return render(request, "experiment/charts.html", page.context("experiment"))


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


@require_GET
def series(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the curves of all runs: `?metric=loss&x=step`; `only=3,5` names runs, `from` and `to` a part of the steps."""
    runs = chosen_runs(get_object_or_404(Experiment, slug=slug), request.GET)
    only = {text for text in request.GET.get("only", "").split(",") if text}
    over = request.GET.get("x", "")
    curves = experiment_series(
        [run for run in runs if not only or str(run.number) in only],
        request.GET.get("metric", "loss")[:200],
        over if over in AXES else AXES[0],
        window_of(request.GET),
    )
    return JsonResponse(curves)
