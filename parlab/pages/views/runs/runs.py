"""The tabs Charts, System and Details of a run, and its actions."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from parlab.charts.theme import MAX_RANKS, RANK_COLOURS
from parlab.fleet import services as fleet
from parlab.fleet.differences import node_differences
from parlab.lab.models import Attempt, Run, Snapshot
from parlab.pages.reads.runs.losses import loss_name
from parlab.pages.reads.runs.siblings import sibling_panels
from parlab.pages.reads.runs.single_values import single_values
from parlab.pages.rows.links import link_rows
from parlab.pages.views.partial import UNCHANGED
from parlab.publishing.figures import engine_measurements, run_curves, telemetry
from parlab.publishing.figures.chains import Joined
from parlab.publishing.figures.chosen_ranks import AUTOMATIC, ChosenRanks, ranks_in
from parlab.series.store import SeriesInfo

from .addressed import find_attempt, find_run
from .details import details_context, fixed_context
from .heads import page_context

_MOVED = {"step": "run-ranks", "phase": "run-ranks", "ranks_of": "run-ranks", "node": "run-log", "rank": "run-log"}
"""Names in addresses of earlier versions -> the tab that has them now."""
SERIES_OFFERED = 100
"""Series that the menu of panels lists; a search finds the others of a run that has up to 100,000."""
_BUSY = ("gpu-utilisation", "processor")
"""Figures of a machine that stand beside the curves: the first that a run has."""


@require_GET
def run(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Show the curves of a run, and what its engine measures besides; figures without curves beside other runs.

    Figures alone have no charts: their details stand here.
    """
    for name, tab in _MOVED.items():
        if name in request.GET:
            address = f"{reverse(tab, args=[slug, number])}?{request.GET.urlencode()}"
            return HttpResponsePermanentRedirect(address, preserve_request=True)
    run = find_run(slug, number)
    attempt = find_attempt(request, run)
    series = Joined(attempt).metrics() if attempt else []
    curves = _curves(request, run, attempt, series)
    siblings = sibling_panels(run) if run.is_final and not curves["panels"] else []
    if attempt is None and run.is_final and not siblings:
        return _details(request, run, attempt)
    context = page_context(request, run, attempt, "run") | {
        **engine_measurements.engine_context(run, attempt),
        "engine_seen": _engine_seen(run, attempt),
        **curves,
        "siblings": siblings,
        "values": single_values(attempt, series) if attempt and run.is_final and not curves["panels"] else [],
    }
    return render(request, "pages/run/charts.html", context)


@require_GET
def run_system(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Show what the nodes of a run measured: devices, network, processors; and its links."""
    run = find_run(slug, number)
    attempt = find_attempt(request, run)
    metrics = Joined(attempt).names() if attempt else set()
    context = page_context(request, run, attempt, "run-system") | {
        "machine": telemetry.figures(attempt, metrics, is_live=not run.is_final) if attempt else [],
        "links": link_rows(run),
        "node_differences": node_differences(attempt.nodes) if attempt else [],
        "has_memory": "memory_bytes" in metrics,
        "panel_query": urlencode({"attempt": attempt.number if attempt else 1, "x": "time"}),
    }
    return render(request, "pages/run/system.html", context)


@require_GET
def run_details(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Show the configuration of a run and how it was launched."""
    run = find_run(slug, number)
    return _details(request, run, find_attempt(request, run))


def _details(request: HttpRequest, run: Run, attempt: Attempt | None) -> HttpResponse:
    context = page_context(request, run, attempt, "run-details")
    context |= {**details_context(run, attempt), **fixed_context(run, context["findings"])}
    return render(request, "pages/run/details.html", context)


def _curves(request: HttpRequest, run: Run, attempt: Attempt | None, infos: Sequence[SeriesInfo]) -> dict[str, Any]:
    """Return the curves that a run has, or will have while it is active, and what can be chosen of them."""
    has_steps = engine_measurements.has_steps(run)
    awaited = attempt is not None and not run.is_final
    last_rank = max((info.rank for info in infos), default=0)
    ranks = ranks_in(request.GET.get("ranks", "")) if last_rank >= MAX_RANKS else AUTOMATIC
    # A file often states a single point, which is no curve.
    several = {info.metric for info in infos if info.points > 1}
    names = _series_names(run, several) if has_steps else []
    names = names or (["loss"] if awaited and has_steps else [])
    asked = [name for name in request.GET.getlist("series") if name in names][: run_curves.MAX_SERIES]
    chosen = asked or _first_series(names, has_step_times="step_time_s" in several)
    metrics = several | ({"step_time_s", "memory_bytes"} if awaited else set())
    return {
        "panels": _panels(run, attempt, metrics, chosen, _panel_query(request, attempt, ranks)),
        "has_choices": has_steps and bool(names or "step_time_s" in metrics),
        **_offered(names, chosen, request.GET.get("find", "").strip()[:200]),
        "most_series": run_curves.MAX_SERIES,
        "shown_series": chosen,
        "has_rank_choice": last_rank >= MAX_RANKS,
        "last_rank": last_rank,
        "chosen_ranks": ranks.text,
        "rank_keys": _rank_keys(infos),
        "x": "time" if request.GET.get("x") == "time" else "step",
    }


def _offered(names: Sequence[str], chosen: Collection[str], text: str) -> dict[str, Any]:
    """Return the series that the menu of panels lists: the first ones with a text in their name, and those chosen."""
    found = [name for name in names if text.lower() in name.lower()] if text else names
    listed = dict.fromkeys((*found[:SERIES_OFFERED], *chosen))
    return {
        "series": [(name, run_curves.series_title(name)) for name in listed],
        "found_series": len(found) if text else None,
        "left_out_series": max(0, len(found) - SERIES_OFFERED),
        "find": text,
    }


def _series_names(run: Run, metrics: Collection[str]) -> list[str]:
    """Return the series of a run without a figure of their own: its loss, then those of most runs, then the others."""
    names = run_curves.series_names(metrics)
    loss = loss_name(run, names)
    return sorted(names, key=lambda name: name != loss)


def _first_series(names: Sequence[str], *, has_step_times: bool) -> list[str]:
    """Return the series that are shown where none are chosen: the loss, and a rate where no step time tells it."""
    rate = next((name for name in names[1:] if name in run_curves.RATES), None)
    return [*names[:1], rate] if rate is not None and not has_step_times else list(names[:1])


def _rank_keys(infos: Sequence[SeriesInfo]) -> list[tuple[int, int]]:
    """Return the ranks with their colours, if they are few enough to be told apart."""
    numbers = sorted({info.rank for info in infos if info.rank >= 0 and info.metric == "step_time_s"})
    return [(rank, _key(rank)) for rank in numbers] if 1 < len(numbers) <= MAX_RANKS else []


class Panel(NamedTuple):
    """A figure in the grid of a page."""

    name: str
    title: str
    query: str
    own: str = ""
    """The part of the query that the controls of the page do not change."""
    smooths: bool = False
    series: str = ""
    """The series of a panel named `series`."""
    label: str = ""
    """What the label at the end of its first line says: last or peak."""
    size: str = "c4"

    @property
    def pin(self) -> str:
        """What a report calls it: `memory`, `series:loss`."""
        return f"{self.name}:{self.series}" if self.series else self.name


def _panels(
    run: Run, attempt: Attempt | None, metrics: Collection[str], chosen: Sequence[str], query: str
) -> list[Panel]:
    has_steps = engine_measurements.has_steps(run)
    panels = [Panel("step-time", "Step time", query, smooths=True)] if has_steps and "step_time_s" in metrics else []
    for metric in chosen:
        own = urlencode({"series": metric}, safe="/")
        title = run_curves.series_title(metric)
        panels.append(Panel("series", title, f"{query}&{own}", own, smooths=True, series=metric, label="last"))
    if "memory_bytes" in metrics:
        panels.append(Panel("memory", "Memory", query, label="peak"))
    if has_steps and run_curves.phase_timers(metrics):
        panels.append(Panel("phases", "Phases", query))
    machine = telemetry.figures(attempt, metrics, is_live=not run.is_final) if attempt else []
    busy = next((figure for name in _BUSY for figure in machine if figure.name == name), None)
    panels += [Panel(busy.name, busy.title, query)] if busy else []
    return [panel._replace(size=size) for panel, size in zip(panels, _sizes(len(panels)), strict=True)]


def _sizes(count: int) -> list[str]:
    """Return the widths of panels that fill their rows: three in a row, and two in the last ones."""
    halves = {0: 0, 1: 4, 2: 2}[count % 3] if count > 2 else count
    return ["c4"] * (count - halves) + ["c6"] * halves


def _key(rank: int) -> int:
    """Return the number of the colour of a rank: `b1`."""
    return RANK_KEYS[rank % len(RANK_COLOURS)]


RANK_KEYS = (1, 2, 3, 4, 6, 5, 8, 7)
"""Classes of face.css in the order of RANK_COLOURS."""


def _panel_query(request: HttpRequest, attempt: Attempt | None, ranks: ChosenRanks = AUTOMATIC) -> str:
    """Return the query of the figures of an attempt, with the choices of the address."""
    x = "time" if request.GET.get("x") == "time" else "step"
    return urlencode([("attempt", attempt.number if attempt else 1), *_rank_query(ranks), ("x", x)])


def _rank_query(ranks: ChosenRanks) -> list[tuple[str, str]]:
    return [("ranks", ranks.text)] if ranks.text else []


@require_GET
def run_engine(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Answer a poll for engine-specific measurements: trials of a search, rows of bandwidths."""
    run = find_run(slug, number)
    attempt = find_attempt(request, run)
    if request.GET.get("seen") == _engine_seen(run, attempt):
        return HttpResponse(status=UNCHANGED)
    context = {
        "run": run,
        "experiment": run.experiment,
        "attempt": attempt,
        "is_live": not run.is_final,
    }
    context |= engine_measurements.engine_context(run, attempt) | {"engine_seen": _engine_seen(run, attempt)}
    return render(request, "pages/run/engine_live.html", context)


def _engine_seen(run: Run, attempt: Attempt | None) -> str:
    return f"{attempt.last_step if attempt else ''}-{run.state}"


@require_GET
def snapshot(request: HttpRequest, slug: str, number: int, pk: int) -> HttpResponse:
    stored = get_object_or_404(
        Snapshot.objects.select_related("run", "experiment"), pk=pk, experiment__slug=slug, run__number=number
    )
    text = json.dumps(stored.content, indent=2, ensure_ascii=False)
    return render(request, "pages/run/snapshot.html", {"snapshot": stored, "text": text, "section": "experiments"})


@require_POST
@permission_required("lab.change_run", raise_exception=True)
def cancel(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    run = find_run(slug, number)
    try:
        state = fleet.cancel(run=run)
    except ValueError as error:
        messages.error(request, f"Run {number} was not cancelled: {error}.")
    else:
        messages.success(request, f"Run {number} is {'cancelled' if state.is_final else 'stopping'}.")
    return redirect(run)


@require_POST
@permission_required("lab.change_run", raise_exception=True)
def end_chain(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    run = find_run(slug, number)
    try:
        fleet.end_chain(run=run)
    except ValueError as error:
        messages.error(request, f"The chain of run {number} was not ended: {error}.")
    else:
        messages.success(request, f"Attempt {run.attempt_number} of run {number} is the last one.")
    return redirect(run)


@require_POST
@permission_required("lab.change_run", raise_exception=True)
def relaunch(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    run = find_run(slug, number)
    try:
        fleet.relaunch(run=run, user=cast(User, request.user))
    except ValueError as error:
        messages.error(request, f"Run {number} was not launched again: {error}.")
    else:
        messages.success(request, f"Run {number} is queued again.")
    return redirect(run)
