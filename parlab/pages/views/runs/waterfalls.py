"""Where the time of a run's steps goes: its waterfall, the planner's, and the difference to another run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from parlab.advice.waterfalls.waterfall import Waterfall
from parlab.charts import theme
from parlab.charts.runs import waterfall
from parlab.charts.theme import Drawing
from parlab.lab.models import Run
from parlab.lab.selectors.analysis.waterfalls import RunWaterfalls, run_waterfalls
from parlab.pages.reads.runs import timelines
from parlab.pages.rows.waterfalls import change_table, column_of, deltas_of, term_table
from parlab.pages.views.experiments.figures import csv_response, json_response
from parlab.publishing.figures.engine_measurements import has_steps

from .addressed import find_attempt, find_run
from .advice import advice_context
from .heads import page_context

_OTHER = re.compile(r"(?:([-a-zA-Z0-9_]{1,120})/)?(\d{1,9})")
PREDICTION = "prediction"
LONGEST = 200


class Beside(NamedTuple):
    """The second waterfall of a page, or the problem with the requested one."""

    text: str
    waterfall: Waterfall | None
    problem: str
    run: Run | None = None


def _beside(run: Run, own: RunWaterfalls, text: str) -> Beside:
    """Return the waterfall that `?with=` names: `prediction`, `7` or `experiment/7`."""
    text = text.strip()[:LONGEST]
    if not text:
        return Beside("", None, "")
    if text == PREDICTION:
        return Beside(text, own.predicted, "" if own.predicted else f"no prediction: {own.prediction_reason}")
    match = _OTHER.fullmatch(text.removeprefix("#"))
    if match is None:
        return Beside(text, None, f"{text!r} is not a run; use the number of a run, experiment/3 or prediction")
    slug = match[1] or run.experiment.slug
    other = Run.objects.select_related("experiment", "config").filter(experiment__slug=slug, number=int(match[2]))
    other_run = other.first()
    if other_run is None:
        return Beside(text, None, f"no run {slug}/{match[2]}; choose a run from the list of runs")
    falls = run_waterfalls(other_run, with_prediction=False)
    if falls.measured is None:
        return Beside(text, None, f"run {slug}/{match[2]} has no waterfall: {falls.reason}", other_run)
    title = f"Run {other_run.number}" + (f" of {other_run.experiment.name}" if slug != run.experiment.slug else "")
    return Beside(text, replace(falls.measured, title=title), "", other_run)


@require_GET
def run_time(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Show the terms of a step, next to them those of `?with=`, and the advice."""
    run = find_run(slug, number)
    attempt = find_attempt(request, run)
    own = run_waterfalls(run)
    requested = request.GET.get("with", PREDICTION if own.predicted else "")
    beside = _beside(run, own, requested)
    others = run.experiment.runs.exclude(pk=run.pk).exclude(step_time_s=None).order_by("number")
    context = {
        **page_context(request, run, attempt, "run-time"),
        "timeline": timelines.run_timeline(run, attempt),
        "own": own,
        "table": term_table(own.measured) if own.measured else None,
        "is_explained": own.measured is not None and own.measured.is_explained,
        "beside": beside,
        "beside_table": term_table(beside.waterfall) if own.measured and beside.waterfall else None,
        "changes": change_table(own.measured, beside.waterfall) if own.measured and beside.waterfall else None,
        "others": list(others.values_list("number", "label")[:200]),
        "has_steps": has_steps(run),
        **(advice_context(run) if own.measured or not has_steps(run) else {}),
    }
    return render(request, "pages/run/time.html", context)


def _drawing(request: HttpRequest, slug: str, number: int, name: str) -> Drawing:
    if name not in ("waterfall", "difference"):
        raise Http404(f"Unknown figure {name}. The figures are waterfall and difference.")
    run = find_run(slug, number)
    requested = request.GET.get("with", "")
    own = run_waterfalls(run, with_prediction=requested == PREDICTION)
    if own.measured is None:
        return theme.missing(waterfall.TITLE, own.reason)
    beside = _beside(run, own, requested)
    if name == "waterfall":
        columns = [own.measured, *([beside.waterfall] if beside.waterfall else [])]
        return waterfall.figure([column_of(column) for column in columns])
    if beside.waterfall is None:
        return theme.missing(waterfall.DIFFERENCE, beside.problem or "needs a second run")
    titles = (own.measured.title, beside.waterfall.title)
    return waterfall.difference_figure(deltas_of(own.measured, beside.waterfall), titles)


@require_GET
def time_json(request: HttpRequest, slug: str, number: int, name: str) -> HttpResponse:
    return json_response(_drawing(request, slug, number, name))


@require_GET
def time_csv(request: HttpRequest, slug: str, number: int, name: str) -> HttpResponse:
    return csv_response(_drawing(request, slug, number, name).table, f"{slug}-run-{number}-{name}.csv")
