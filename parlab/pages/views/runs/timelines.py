"""Timelines of two runs or simulations on a shared time axis."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.views.decorators.http import require_GET

from parlab.charts import theme
from parlab.charts.runs import timeline
from parlab.charts.runs.timeline import Timeline
from parlab.charts.theme import Drawing
from parlab.lab.models import Attempt, Run
from parlab.pages.reads.planning.simulated_timelines import simulated_run
from parlab.pages.reads.runs import timelines as timeline_reads
from parlab.pages.views.experiments.figures import csv_response, json_response
from parlab.pages.views.planning.simulations import simulated_by
from parlab.planner.schedule import plan_of
from parlab.whole_numbers import whole_number

_RUN = re.compile(r"([-a-zA-Z0-9_]{1,120})/(\d{1,9})(?:@(\d{1,10}))?")
_RUN_PAGE = re.compile(r"/experiments/([-a-zA-Z0-9_]{1,120})/runs/(\d{1,9})/?")
_SLUG = re.compile(r"(?:simulated:|.{0,200}/experiments/)?([-a-zA-Z0-9_]{1,120})/")
_SIMULATED = "simulated:"
_MOST_RUNS = 40
LONGEST = 4_000


class Side(NamedTuple):
    """One of the two compared timelines: the text of its field, and the timeline or the problem."""

    text: str
    timeline: Timeline | None
    problem: str
    is_typed: bool = False
    """Whether the list of choices lacks it."""


def read_side(text: str) -> Side:
    """Read the text of a field: a run, a simulated run, or the URL of either page.

    `experiment/3` is run 3 as measured, `experiment/3@5` its step 5, `simulated:experiment/3` the same run simulated,
    `simulated:experiment/3:1f1b-2` with another schedule.
    """
    text = text.strip()[:LONGEST]
    if not text:
        return Side("", None, "")
    try:
        drawing = _timeline_of(text)
    except ValueError as error:
        return Side(text, None, str(error))
    return Side(text, drawing, "" if drawing else f"{text[:80]} has no timeline to draw")


def _timeline_of(text: str) -> Timeline | None:
    if text.startswith(_SIMULATED):
        name, _, code = text.removeprefix(_SIMULATED).partition(":")
        match = _RUN.fullmatch(name)
        if match is None:
            raise _unknown(text)
        return _simulated(match[1], int(match[2]), code)
    parts = urlsplit(text)
    if parts.path.startswith("/simulate"):
        return simulated_by(QueryDict(parts.query))
    page = _RUN_PAGE.search(parts.path)
    if page:
        step = QueryDict(parts.query).get("step", "")
        return _measured(page[1], int(page[2]), whole_number(step))
    match = _RUN.fullmatch(text)
    if match is None:
        raise _unknown(text)
    return _measured(match[1], int(match[2]), int(match[3]) if match[3] else None)


def _unknown(text: str) -> ValueError:
    remedy = "use experiment/3, simulated:experiment/3, or paste a URL"
    return ValueError(f"{text[:80]!r} is not a run or a simulation; {remedy}")


def _run(slug: str, number: int) -> Run:
    run = Run.objects.select_related("experiment", "config").filter(experiment__slug=slug, number=number).first()
    if run is None:
        raise ValueError(f"no run {slug}/{number}; choose a run from the list of runs")
    return run


def _measured(slug: str, number: int, step: int | None) -> Timeline:
    run = _run(slug, number)
    attempt: Attempt | None = run.attempts.filter(number=run.attempt_number).first()
    steps = timeline_reads.steps_of(attempt)
    if attempt is None or not steps:
        raise ValueError(f"run {slug}/{number} has no recorded passes; use simulated:{slug}/{number}")
    drawing = timeline_reads.measured_timeline(run, attempt, step)
    if drawing is None:
        raise ValueError(
            f"step {step} of run {slug}/{number} is not recorded; use one of {', '.join(map(str, steps[:12]))}"
        )
    return drawing


def _simulated(slug: str, number: int, code: str) -> Timeline:
    drawing = simulated_run(_run(slug, number), plan_of(code) if code else None)
    if drawing is None:
        raise ValueError(f"run {slug}/{number} cannot be simulated: it is not a pipeline, or its step time is unknown")
    return drawing


def _sides(request: HttpRequest) -> list[Side]:
    """Read both sides; a typed address comes before the choice of the list."""
    return [read_side(request.GET.get(f"{name}_typed", "").strip() or request.GET.get(name, "")) for name in ("a", "b")]


def _choices(sides: list[Side]) -> list[tuple[str, str]]:
    """Return the timelines of the experiments that the sides name, as the text of a side and its title."""
    slugs = {match[1] for side in sides if (match := _SLUG.match(side.text))}
    runs = Run.objects.select_related("experiment").filter(experiment__slug__in=slugs).order_by("-number")[:_MOST_RUNS]
    return [choice for run in runs for choice in timeline_reads.timeline_choices(run)]


@require_GET
def timelines(request: HttpRequest) -> HttpResponse:
    sides = _sides(request)
    drawn = [side.timeline for side in sides if side.timeline]
    choices = _choices(sides)
    listed = {text for text, _title in choices}
    context = {
        "section": "compare",
        "sides": [side._replace(is_typed=bool(side.text) and side.text not in listed) for side in sides],
        "choices": choices,
        "problems": [side.problem for side in sides if side.problem],
        "lanes": sum(len(side.bubbles) for side in drawn),
        "address": request.GET.urlencode(),
    }
    return render(request, "pages/plan/timelines.html", context)


def _drawing(request: HttpRequest) -> Drawing:
    sides = _sides(request)
    drawn = [side.timeline for side in sides if side.timeline]
    if not drawn:
        return theme.nothing(next((side.problem for side in sides if side.problem), "No timeline selected."))
    return timeline.figure(drawn)


@require_GET
def timelines_json(request: HttpRequest) -> HttpResponse:
    return json_response(_drawing(request))


@require_GET
def timelines_csv(request: HttpRequest) -> HttpResponse:
    return csv_response(_drawing(request).table, "timelines.csv")
