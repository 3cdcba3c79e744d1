"""The page of a run: content, live parts, actions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from parlab.charts.theme import MAX_RANKS
from parlab.fleet import services as fleet
from parlab.fleet.differences import node_differences
from parlab.lab.models import Attempt, Run, Snapshot
from parlab.lab.selectors.analysis.utilisation import compute, measured_pct, peak_text
from parlab.lab.selectors.analysis.waterfalls import has_waterfall
from parlab.lab.selectors.findings import run_doubts, run_findings
from parlab.lab.selectors.lists import RunMarks, run_marks
from parlab.lab.selectors.runs import (
    by_hand,
    command_line,
    config_sections,
    flat,
    remaining_s,
    run_figures,
    sections_in_use,
)
from parlab.pages.reads import timelines
from parlab.pages.rows.findings import finding_rows
from parlab.pages.rows.links import link_rows
from parlab.pages.rows.runs import run_row
from parlab.pages.rows.slurm import slurm_job
from parlab.pages.views.experiments.reported import reported_context
from parlab.pages.views.partial import UNCHANGED
from parlab.publishing.figures import engine_measurements, run_curves, telemetry
from parlab.publishing.figures.chosen_ranks import AUTOMATIC, ChosenRanks, ranks_in
from parlab.series import store
from parlab.series.store import SeriesInfo
from runners.config import digest

from .addressed import find_attempt, find_run
from .logs import log_context
from .ranks import ranks_context


@require_GET
def run(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    run = find_run(slug, number)
    attempt = find_attempt(request, run)
    series = store.metrics(attempt.pk) if attempt else []
    metrics = {info.metric for info in series}
    context, reported = _context(run, attempt), reported_context(run)
    context |= {
        **_details(run, attempt),
        **engine_measurements.engine_context(run, attempt),
        "engine_seen": _engine_seen(run, attempt),
        "rows": finding_rows(context["findings"]),
        "next": run.get_absolute_url(),
        **_curves(request, run, attempt, series),
        "has_waterfall": has_waterfall(run),
        "marks": run_marks([run.pk]).get(run.pk, RunMarks()),
        **ranks_context(request.GET, run, attempt, series),
        "machine": telemetry.figures(attempt, metrics, is_live=not run.is_final) if attempt else [],
        "timeline": timelines.run_timeline(run, attempt, request.GET.get("step", "")),
        **reported,
        # The parameters of a reported run are its arguments.
        "arguments": [] if reported else flat(run.launch.get("arguments", {})),
        "derived": sorted((run.launch.get("derived") or {}).items()),
        **_configuration(run),
        **(log_context(request.GET, run, attempt) if attempt else {}),
    }
    return render(request, "pages/run.html", context)


def _configuration(run: Run) -> dict[str, Any]:
    """Return the configuration in two parts: what the engine of the run reads, and the rest."""
    arranged = config_sections(run.resolved, run.point, run.config)
    sections, unused = sections_in_use(run, arranged)
    return {"sections": sections, "unused": unused, "unused_count": sum(len(section.fields) for section in unused)}


def _curves(request: HttpRequest, run: Run, attempt: Attempt | None, infos: Sequence[SeriesInfo]) -> dict[str, Any]:
    """Return the curves that a run has, or will have while it is active."""
    has_steps = engine_measurements.has_steps(run)
    metrics = {info.metric for info in infos}
    last_rank = max((info.rank for info in infos), default=0)
    ranks = ranks_in(request.GET.get("ranks", "")) if last_rank >= MAX_RANKS else AUTOMATIC
    awaited = attempt is not None and not run.is_final
    names = run_curves.series_names(metrics) if has_steps else []
    names = names or (["loss"] if awaited and has_steps else [])
    chosen = [name for name in request.GET.getlist("series") if name in names][: run_curves.MAX_SERIES] or names[:1]
    return {
        "has_step_time": "step_time_s" in metrics or (awaited and has_steps),
        "has_memory": "memory_bytes" in metrics or awaited,
        "series": [(name, run_curves.series_title(name)) for name in names],
        "most_series": run_curves.MAX_SERIES,
        "shown_series": chosen,
        "shown_title": ", ".join(run_curves.series_title(name) for name in chosen),
        "series_query": urlencode([*(("series", name) for name in chosen), *_rank_query(ranks)], safe="/"),
        "has_rank_choice": last_rank >= MAX_RANKS,
        "last_rank": last_rank,
        "chosen_ranks": ranks.text,
        "curve_query": urlencode(_rank_query(ranks)),
    }


def _rank_query(ranks: ChosenRanks) -> list[tuple[str, str]]:
    return [("ranks", ranks.text)] if ranks.text else []


@require_GET
def run_live(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Answer a poll; include the details if the state has changed."""
    run = find_run(slug, number)
    if request.GET.get("current") != str(run.attempt_number):
        # A new attempt has its own log and curves, so the whole page is reloaded.
        return HttpResponse(headers={"HX-Refresh": "true"})
    attempt = find_attempt(request, run)
    context = _context(run, attempt)
    if request.GET.get("seen") == context["seen"]:
        return HttpResponse(status=UNCHANGED)
    if request.GET.get("state") != context["state_seen"]:
        context |= {**_details(run, attempt), "with_details": True}
    return render(request, "pages/run_live.html", context)


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
    context |= engine_measurements.engine_context(run, attempt) | {
        "engine_seen": _engine_seen(run, attempt),
        "is_poll": True,
    }
    return render(request, "pages/run_engine_live.html", context)


def _engine_seen(run: Run, attempt: Attempt | None) -> str:
    return f"{attempt.last_step if attempt else ''}-{run.state}"


def _context(run: Run, attempt: Attempt | None) -> dict[str, Any]:
    """Return the part of the page that changes with every step."""
    waiting = fleet.waiting_reasons([run]).get(run.pk, "")
    step = attempt.last_step if attempt else None
    state_seen = f"{run.state}-{run.attempt_number}-{'c' if run.cancel_requested_at else ''}"
    # The log and the memory curve also grow before the first step and between steps.
    committed = attempt.committed if attempt else 0
    findings = run_findings(run)
    finding_states = [[finding.pk, finding.is_acknowledged] for finding in findings]
    doubts = run_doubts(findings, [run]).get(run.pk)
    changing = [state_seen, finding_states, step, committed, run.summary.get("step_time_s"), run.reason, waiting]
    return {
        "section": "experiments",
        "experiment": run.experiment,
        "run": run,
        "row": run_row(run, step=step, waiting=waiting, doubts=doubts),
        "findings": findings,
        "attempt": attempt,
        "figures": run_figures(run),
        "peak": peak_text(run.summary),
        "flops_per_device": compute(run.summary),
        "has_steps": engine_measurements.has_steps(run),
        "mfu_pct": measured_pct(run.summary, "mfu"),
        "hfu_pct": measured_pct(run.summary, "hfu"),
        "is_current": attempt is None or attempt.number == run.attempt_number,
        "is_live": not run.is_final,
        "remaining_s": remaining_s(run, attempt) if attempt else None,
        "state_seen": state_seen,
        "seen": digest(changing)[:16],
        "drawn_from": f"{state_seen}:{committed}",
    }


def _details(run: Run, attempt: Attempt | None) -> dict[str, Any]:
    """Return the part of the page that changes with the state only."""
    return {
        "attempts": list(run.attempts.with_members()),
        "node_differences": node_differences(attempt.nodes) if attempt else [],
        "links": link_rows(run),
        "snapshots": list(run.snapshots.defer("content")),
        "command": command_line(attempt) if attempt else "",
        "by_hand": by_hand(run, attempt) if attempt else "",
        "environment": flat({**attempt.environment, "slurm": {}}) if attempt else [],
        "slurm": slurm_job(attempt.environment) if attempt else None,
    }


@require_GET
def snapshot(request: HttpRequest, slug: str, number: int, pk: int) -> HttpResponse:
    stored = get_object_or_404(
        Snapshot.objects.select_related("run", "experiment"), pk=pk, experiment__slug=slug, run__number=number
    )
    text = json.dumps(stored.content, indent=2, ensure_ascii=False)
    return render(request, "pages/snapshot.html", {"snapshot": stored, "text": text, "section": "experiments"})


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
def relaunch(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    run = find_run(slug, number)
    try:
        fleet.relaunch(run=run, user=cast(User, request.user))
    except ValueError as error:
        messages.error(request, f"Run {number} was not launched again: {error}.")
    else:
        messages.success(request, f"Run {number} is queued again.")
    return redirect(run)
