"""One experiment: its page, the part that changes while runs are active, and its buttons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from parlab.fleet import services as fleet
from parlab.lab import selectors
from parlab.lab import services as lab
from parlab.lab.models import Config, Experiment, Finding, Run
from parlab.pages.choices import (
    FIGURE_KEYS,
    PIVOT_KEYS,
    Pivot,
    kept_query,
    pivot_asked,
    pivot_of,
    pivot_selects,
)
from parlab.pages.experiment_figures import experiment_figures
from parlab.pages.notes import notes_html
from parlab.pages.read_bandwidths import FORMATS
from parlab.pages.rows.findings import finding_rows
from parlab.pages.rows.reports import experiment_report
from parlab.pages.rows.runs import run_table
from parlab.pages.rows.sources import source_views
from parlab.pages.rows.sweep import sweep_tables
from parlab.reports.markdown import markdown
from runners.config import ConfigError, digest, engine_of
from runners.protocol import RunState

from .partial import UNCHANGED

RUNS_PER_PAGE = 200
FINDINGS_ON_PAGE = 10
CELLS_ON_PAGE = 3_000
"""Cells of documents' tables that the page of an experiment shows; files beyond have a page of their own."""


@require_GET
def experiment(request: HttpRequest, slug: str) -> HttpResponse:
    found = get_object_or_404(Experiment.objects.select_related("owner"), slug=slug)
    context = _context(request, found)
    runs: list[Run] = context["runs"]
    context |= _documents(found, context["findings"])
    has_bandwidth = any(engine_of(run.resolved).measures_bandwidth for run in runs) or any(
        source.format in FORMATS for source in context["sources"]
    )
    context |= {
        "pivot_selects": pivot_selects(request.GET, runs) if len(runs) > 1 else None,
        "notes": notes_html(found.notes),
        "tags": selectors.experiment_tags([found.pk]).get(found.pk, []),
    }
    if runs or has_bandwidth:
        context["figures"] = experiment_figures(
            found,
            selectors.run_points(runs),
            request.GET,
            has_bandwidth=has_bandwidth,
            is_live=context["is_live"],
        )
    return render(request, "pages/experiment.html", context)


@require_GET
def report(_request: HttpRequest, slug: str) -> HttpResponse:
    """Answer with the experiment as a Markdown document to keep or hand on."""
    found = get_object_or_404(Experiment, slug=slug)
    response = HttpResponse(markdown(experiment_report(found)), content_type="text/markdown; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{found.slug}.md"'
    return response


@require_GET
def experiment_live(request: HttpRequest, slug: str) -> HttpResponse:
    """Answer a poll: what changes while runs are active, or nothing where nothing did."""
    found = get_object_or_404(Experiment, slug=slug)
    context = _context(request, found)
    if request.GET.get("seen") == context["seen"]:
        return HttpResponse(status=UNCHANGED)
    return render(request, "pages/experiment_live.html", context)


def _context(request: HttpRequest, experiment: Experiment) -> dict[str, Any]:
    metric = request.GET.get("metric", "step_time")
    metric = metric if metric in selectors.METRICS else "step_time"
    versions = selectors.experiment_versions(experiment, request.GET.get("version", ""))
    runs = selectors.experiment_runs(experiment, versions)
    plan = selectors.launch_plan(versions.selected, runs)
    findings = selectors.experiment_findings(experiment)
    doubts = selectors.run_doubts(findings, runs)
    page = Paginator(runs, RUNS_PER_PAGE).get_page(request.GET.get("page"))
    listed = list(page.object_list)
    waiting = fleet.waiting_reasons([run for run in listed if run.state == RunState.QUEUED])
    doubted = [[finding.pk, finding.is_acknowledged] for finding in findings]
    table, problem = _pivot(request, runs, doubts)
    verdict = selectors.verdict(runs)
    changing = [[run.state, getattr(run, "last_step", None), run.step_time_s, run.reason] for run in runs]
    ended = sum(run.is_final for run in runs)
    return {
        "section": "experiments",
        "experiment": experiment,
        "versions": versions,
        "runs": runs,
        "verdict": verdict,
        "best_doubts": _doubts_of(verdict, doubts),
        "pivot": table,
        "pivot_problem": problem,
        "kept": kept_query(request.GET, (*PIVOT_KEYS, *FIGURE_KEYS)),
        "plan": plan,
        "page": page,
        "table": run_table(listed, waiting=waiting, doubts=doubts),
        "states": selectors.state_counts(run.state for run in runs),
        "sweep": sweep_tables(runs, plan.points, metric, doubts),
        "findings": findings,
        "metrics": [(name, found.title) for name, found in selectors.metrics_of(runs).items()],
        "is_live": ended < len(runs),
        "has_networks": selectors.has_pipelines(runs),
        # Figures draw runs that have ended, so they are drawn again when one more has.
        "drawn_from": f"{versions.query}:{ended}",
        "seen": digest([changing, doubted, waiting, metric, versions.query, page.number, problem])[:16],
    }


def _doubts_of(verdict: selectors.Verdict, doubts: Mapping[int, selectors.Doubts]) -> list[Finding]:
    """List what doubts the run that is called the fastest, each finding once."""
    of_best = doubts.get(verdict.lead.best.pk, {}) if verdict.lead else {}
    return list({finding.pk: finding for found in of_best.values() for finding in found}.values())


def _pivot(request: HttpRequest, runs: list[Run], doubts: Mapping[int, selectors.Doubts]) -> tuple[Pivot | None, str]:
    """Shape the table that the address asks for; or say what was wrong with the wish."""
    if not pivot_asked(request.GET):
        return None, ""
    try:
        return pivot_of(request.GET, runs, doubts), ""
    except ValueError as error:
        return None, f"This table cannot be made: {error}."


def _documents(experiment: Experiment, findings: list[Finding]) -> dict[str, Any]:
    """What does not change while runs are active: findings as a list, and the imported files."""
    sources, shown, cells = source_views(experiment, findings), [], 0
    for source in sources:
        cells += source.cells
        if source.has_content and cells <= CELLS_ON_PAGE:
            shown.append(source)
    return {
        "findings_open": sum(not finding.is_acknowledged for finding in findings),
        "rows": finding_rows(findings[:FINDINGS_ON_PAGE]),
        "sources": sources,
        "documents": shown,
        "next": experiment.get_absolute_url(),
    }


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def launch(request: HttpRequest, slug: str, version: int) -> HttpResponse:
    config = get_object_or_404(Config.objects.select_related("experiment"), experiment__slug=slug, version=version)
    back = _to_version(config)
    try:
        result = fleet.launch(config=config, user=cast(User, request.user))
    except (ConfigError, ValueError) as error:
        messages.error(request, f"Nothing was launched: {error}.")
        return back
    started = len(result.created)
    if started:
        messages.success(request, f"Launched {started} {'run' if started == 1 else 'runs'}.")
    else:
        messages.info(request, "Nothing was launched: every point that can run has its run already.")
    return back


def _to_version(config: Config) -> HttpResponseRedirect:
    newest = config.experiment.configs.order_by("-version").values_list("version", flat=True).first()
    url = reverse("experiment", args=[config.experiment.slug])
    return HttpResponseRedirect(url if config.version == newest else f"{url}?version={config.version}")


@require_POST
@permission_required("lab.add_experiment", raise_exception=True)
def clone(request: HttpRequest, slug: str) -> HttpResponse:
    found = get_object_or_404(Experiment, slug=slug)
    copy = lab.experiment_clone(experiment=found, user=cast(User, request.user))
    messages.success(request, f"This is a copy of {found.name}: its newest configuration, without runs.")
    return redirect(copy)
