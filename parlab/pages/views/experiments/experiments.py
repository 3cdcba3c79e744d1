"""One experiment: its page, the part that changes while runs are active, and its buttons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from parlab.charts.sweeps import device_map
from parlab.charts.sweeps.device_map import DeviceMap
from parlab.fleet import services as fleet
from parlab.lab.models import Comment, Config, Dashboard, Experiment, Finding, Run
from parlab.lab.selectors.analysis import rankings as rankings_selectors
from parlab.lab.selectors.analysis.pipelines import has_pipelines
from parlab.lab.selectors.analysis.rankings import Verdict
from parlab.lab.selectors.analysis.surroundings import run_surroundings
from parlab.lab.selectors.analysis.sweep import METRICS, metrics_of, run_points
from parlab.lab.selectors.changes import changes_since
from parlab.lab.selectors.device_grids import device_grid
from parlab.lab.selectors.experiments import experiment_runs, experiment_versions, launch_plan, state_counts
from parlab.lab.selectors.findings import Doubts, experiment_findings, run_doubts
from parlab.lab.selectors.lists import experiment_tags
from parlab.lab.services.experiments import experiment_clone
from parlab.lab.services.pages.visits import visit
from parlab.pages.forms.choices import (
    FIGURE_KEYS,
    PIVOT_KEYS,
    Pivot,
    Select,
    kept_query,
    pivot_asked,
    pivot_of,
    pivot_selects,
)
from parlab.pages.reads.experiment_figures import ExperimentFigures, experiment_figures
from parlab.pages.reads.notes import notes_html
from parlab.pages.reads.saved_views import default_address
from parlab.pages.rows.findings import finding_rows
from parlab.pages.rows.reports import experiment_report
from parlab.pages.rows.runs import run_table
from parlab.pages.rows.sources import source_views
from parlab.pages.rows.sweep import sweep_tables
from parlab.pages.views.partial import UNCHANGED
from parlab.publishing.figures.bandwidths import FORMATS
from parlab.reports.markdown import markdown
from runners.config import ConfigError, digest, engine_of
from runners.wire.protocol import RunState

RUNS_PER_PAGE = 200
FINDINGS_ON_PAGE = 10
MAX_MAPS = 3
CELLS_ON_PAGE = 3_000
"""Cells of tables of imported documents on the page of an experiment; further files have their own pages."""


@require_GET
def experiment(request: HttpRequest, slug: str) -> HttpResponse:
    owned = get_object_or_404(Experiment.objects.select_related("owner"), slug=slug)
    if default := default_address(request):
        return redirect(default)
    context = _context(request, owned)
    context |= _documents(owned, context["findings"])
    context |= {
        "figures": _figures(request, context),
        "pivot_selects": _pivot_selects(request, context),
        "notes": notes_html(owned.notes),
        "device_maps": _device_maps(context["runs"]),
        "tags": experiment_tags([owned.pk]).get(owned.pk, []),
        "further": _further_pages(owned, context, cast(User, request.user)),
        **_talk(request, owned),
    }
    return render(request, "pages/experiment.html", context)


def _pivot_selects(request: HttpRequest, context: Mapping[str, Any]) -> list[Select] | None:
    """Return the selects of the table's layout; None for a single run, and while there is nothing to arrange."""
    is_offered = context["has_layouts"] and len(context["runs"]) > 1
    return pivot_selects(request.GET, context["runs"]) if is_offered else None


def _talk(request: HttpRequest, experiment: Experiment) -> dict[str, Any]:
    """Return the comments on an experiment, what changed on it since the last visit, and its archived runs."""
    user = cast(User, request.user)
    since = visit(user=user, experiment=experiment)
    return {
        "comments": list(Comment.objects.with_people().filter(experiment=experiment)),
        "changes": changes_since(since, user_id=user.pk, experiment=experiment) if since else None,
        "archived_count": Run.everything.filter(experiment=experiment, hidden_at__isnull=False).count(),
    }


def _further_pages(experiment: Experiment, context: Mapping[str, Any], user: User) -> list[tuple[str, str]]:
    """Return (title, address) of the pages that an experiment leads to."""
    versions, plan = context["versions"], context["plan"]
    pages = []
    if context["states"]:
        is_newest = not versions.is_all and versions.selected == versions.configs[0]
        query = "" if is_newest else f"?version={versions.query}"
        pages.append(("Answer", reverse("answer", args=[experiment.slug]) + query))
    if Dashboard.objects.filter(experiment=experiment).exists():
        pages.append(("Dashboard", reverse("experiment-dashboard", args=[experiment.slug])))
    if context["has_networks"]:
        pages.append(("Networks", reverse("network", args=[experiment.slug])))
    if user.has_perm("lab.add_run") and versions.selected and versions.selected.sweep and plan.is_offered:
        pages.append(("Tune", f"{reverse('tune')}?config={versions.selected.pk}"))
    if user.has_perm("lab.add_report"):
        pages.append(("New report", f"{reverse('report-new')}?experiment={experiment.slug}"))
    return pages


def _device_maps(runs: Sequence[Run]) -> list[tuple[Run, DeviceMap]]:
    """Draw the stages and shards of the first runs that have different maps."""
    maps: dict[str, tuple[Run, DeviceMap]] = {}
    for run in runs:
        grid = device_grid(run)
        drawn = device_map.draw(grid) if grid and repr(grid) not in maps else None
        if drawn is not None:
            maps[repr(grid)] = (run, drawn)
        if len(maps) == MAX_MAPS:
            break
    return list(maps.values())


def _figures(request: HttpRequest, context: Mapping[str, Any]) -> ExperimentFigures | None:
    """Arrange the figures of an experiment; None while it has neither runs nor imported bandwidths."""
    runs: list[Run] = context["runs"]
    has_bandwidth = any(engine_of(run.resolved).measures_bandwidth for run in runs) or any(
        source.format in FORMATS for source in context["sources"]
    )
    if not runs and not has_bandwidth:
        return None
    return experiment_figures(
        context["experiment"],
        run_points(runs),
        request.GET,
        has_bandwidth=has_bandwidth,
        is_live=context["is_live"],
    )


@require_GET
def report(_request: HttpRequest, slug: str) -> HttpResponse:
    """Return the experiment as a Markdown document."""
    reported = get_object_or_404(Experiment, slug=slug)
    response = HttpResponse(markdown(experiment_report(reported)), content_type="text/markdown; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{reported.slug}.md"'
    return response


@require_GET
def experiment_live(request: HttpRequest, slug: str) -> HttpResponse:
    """Answer a poll with the part that changes while runs are active, or with nothing if it has not changed."""
    context = _context(request, get_object_or_404(Experiment, slug=slug))
    if request.GET.get("seen") == context["seen"]:
        return HttpResponse(status=UNCHANGED)
    # The page keeps the fields of the layout that it has; they come once, with the first result.
    if "layouts" not in request.GET:
        context["pivot_selects"] = _pivot_selects(request, context)
    return render(request, "pages/experiment_live.html", context)


def _context(request: HttpRequest, experiment: Experiment) -> dict[str, Any]:
    versions = experiment_versions(experiment, request.GET.get("version", ""))
    runs = experiment_runs(experiment, versions)
    plan = launch_plan(versions.selected, runs)
    findings = experiment_findings(experiment)
    doubts = run_doubts(findings, runs)
    page = Paginator(runs, RUNS_PER_PAGE).get_page(request.GET.get("page"))
    listed = list(page.object_list)
    waiting = fleet.waiting_reasons(listed)
    doubted = [[finding.pk, finding.is_acknowledged] for finding in findings]
    table, problem = _pivot(request, runs, doubts)
    metric = _metric(request, runs)
    finished = [run for run in runs if run.state == RunState.FINISHED]
    surroundings = run_surroundings(finished)
    verdict = rankings_selectors.verdict(runs, surroundings)
    has_results = any(run.is_final or run.summary for run in runs)
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
        "table": run_table(listed, waiting=waiting, doubts=doubts, surroundings=surroundings),
        "states": state_counts(run.shown_state for run in runs),
        "sweep": sweep_tables(runs, plan.points, metric, doubts),
        "findings": findings,
        "metrics": [(name, measure.title) for name, measure in metrics_of(runs).items()],
        "is_live": ended < len(runs),
        "has_results": has_results,
        "has_layouts": bool(has_results or table or problem),
        "has_networks": has_pipelines(runs),
        # Figures show ended runs, so they are drawn again whenever a run ends.
        "drawn_from": f"{versions.query}:{ended}",
        "seen": digest([changing, doubted, waiting, metric, versions.query, page.number, problem])[:16],
    }


def _metric(request: HttpRequest, runs: Sequence[Run]) -> str:
    """Return the metric of the sweep that the address names, else the first that a run has."""
    asked = request.GET.get("metric", "")
    if asked in METRICS:
        return asked
    measured = (name for name, metric in METRICS.items() if any(metric.value(run) is not None for run in runs))
    return next(measured, "step_time")


def _doubts_of(verdict: Verdict, doubts: Mapping[int, Doubts]) -> list[Finding]:
    """Return the findings about the fastest run, without duplicates."""
    of_best = doubts.get(verdict.lead.best.pk, {}) if verdict.lead else {}
    return list({finding.pk: finding for findings in of_best.values() for finding in findings}.values())


def _pivot(request: HttpRequest, runs: list[Run], doubts: Mapping[int, Doubts]) -> tuple[Pivot | None, str]:
    """Return the pivot table that the address describes, or the problem with it."""
    if not pivot_asked(request.GET):
        return None, ""
    try:
        return pivot_of(request.GET, runs, doubts), ""
    except ValueError as error:
        return None, f"Invalid table: {error}."


def _documents(experiment: Experiment, findings: list[Finding]) -> dict[str, Any]:
    """Return the part of the page that does not change while runs are active: findings and imported files."""
    sources, documents, cells = source_views(experiment, findings), [], 0
    for source in sources:
        cells += source.cells
        if source.has_content and cells <= CELLS_ON_PAGE:
            documents.append(source)
    return {
        "findings_open": sum(not finding.is_acknowledged for finding in findings),
        "rows": finding_rows(findings[:FINDINGS_ON_PAGE]),
        "sources": sources,
        "documents": documents,
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
    if result.restored:
        restored = f"{result.restored} {'run' if result.restored == 1 else 'runs'}"
        messages.success(
            request, f"Took {restored} of these points out of the archive; relaunch them to measure again."
        )
    if not started and not result.restored:
        messages.info(request, "Nothing was launched: every point that can run already has a run.")
    return back


def _to_version(config: Config) -> HttpResponseRedirect:
    newest = config.experiment.configs.order_by("-version").values_list("version", flat=True).first()
    url = reverse("experiment", args=[config.experiment.slug])
    return HttpResponseRedirect(url if config.version == newest else f"{url}?version={config.version}")


@require_POST
@permission_required("lab.add_experiment", raise_exception=True)
def clone(request: HttpRequest, slug: str) -> HttpResponse:
    original = get_object_or_404(Experiment, slug=slug)
    copy = experiment_clone(experiment=original, user=cast(User, request.user))
    messages.success(request, f"Cloned {original.name}: its newest configuration, without runs.")
    return redirect(copy)
