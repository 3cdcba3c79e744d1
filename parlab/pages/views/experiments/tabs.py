"""The tabs of an experiment: charts, table, time, comparison, configuration, reports; and what they poll."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET

from parlab.lab.models import Dashboard, Experiment, Run
from parlab.lab.selectors.analysis.pipelines import has_pipelines
from parlab.lab.selectors.analysis.sweep_advice import edges_of, fastest_run
from parlab.lab.selectors.changes import changes_since
from parlab.lab.services.access.rights import may_change
from parlab.lab.services.pages.list_columns import OF_EXPERIMENT, decided_columns
from parlab.lab.services.pages.panel_layouts import layout_of
from parlab.lab.services.pages.saved_views import panels_of_view
from parlab.lab.services.pages.starred import starred_experiments
from parlab.lab.services.pages.visits import visit
from parlab.pages.builder.draft import Draft
from parlab.pages.reads.experiment_page import TABS, ExperimentPage
from parlab.pages.reads.experiment_panels import Grid
from parlab.pages.reads.experiment_runs import ListedRun
from parlab.pages.reads.experiment_tabs import configuration_context, report_context, table_context, time_context
from parlab.pages.reads.saved_views import default_address
from parlab.pages.views.partial import UNCHANGED, is_partial
from parlab.pages.views.runs.advice import advice_context
from parlab.whole_numbers import whole_numbers
from runners.wire.protocol import RunState

from .comparisons import chosen_ids, comparison_context, with_brush
from .lists import columns_in, with_columns

REPEATS_FIELD, REPEATS = "launcher.repeats", 3
COMPARED = 3
"""Runs that are compared where none are chosen: the best of as many groups."""

_ENDED_BADLY = (RunState.FAILED, RunState.LOST, RunState.TIME_LIMIT, RunState.PREEMPTED)
MAX_OFFERED = 60
"""Runs that the menu of a comparison lists."""


def _page(request: HttpRequest, slug: str) -> ExperimentPage:
    experiment = get_object_or_404(Experiment.objects.select_related("owner"), slug=slug)
    return ExperimentPage(experiment, request.GET)


def _context(request: HttpRequest, page: ExperimentPage, tab: str) -> dict[str, Any]:
    """Return what all tabs show, with the further pages of the menu."""
    user = cast(User, request.user)
    newest = page.newest
    can_tune = user.has_perm("lab.add_run") and newest is not None and newest.sweep and page.plan.is_offered
    return page.context(tab) | {
        "repeat_url": _repeat_url(page),
        "has_dashboard": Dashboard.objects.filter(experiment=page.experiment).exists(),
        "has_networks": has_pipelines(page.runs),
        "tune": f"{reverse('tune')}?config={newest.pk}" if can_tune and newest else "",
        "is_starred": page.experiment.pk in starred_experiments(user),
        "next": request.get_full_path(),
        "may_move": may_change(user, page.experiment),
    }


def _repeat_url(page: ExperimentPage) -> str:
    """Return the address of the next version with repeats of each point, where the answer asks for them."""
    action = page.answer.action
    if page.newest is None or action is None or action.kind != "repeat":
        return ""
    draft = Draft.of_config(page.newest)
    repeated = replace(draft, values={**draft.values, REPEATS_FIELD: str(REPEATS)})
    return f"{reverse('sweep-edit', args=[page.experiment.slug])}?{repeated.query()}"


@require_GET
def charts(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the panels of an experiment, and what changed since the last visit."""
    page = _page(request, slug)
    if default := default_address(request):
        return redirect(default)
    user = cast(User, request.user)
    context = _context(request, page, "experiment")
    since = visit(user=user, experiment=page.experiment)
    context["changes"] = changes_since(since, user_id=user.pk, experiment=page.experiment) if since else None
    context["ended_badly"] = [run for run in page.runs if run.state in _ENDED_BADLY]
    of_view = panels_of_view(request.path, request.GET)
    layout = layout_of(user=user, experiment=page.experiment) if of_view is None else of_view
    context["panels"] = Grid(page.experiment, page.runs, page.listed, request.GET, page.points).panels(layout)
    return render(request, "experiment/charts.html", context)


@require_GET
def table(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the runs of an experiment as a table, and arranged by two fields."""
    page = _page(request, slug)
    stated = columns_in(request)
    decided = decided_columns(cast(User, request.user), OF_EXPERIMENT) if stated is None else {}
    context = _context(request, page, "experiment-table")
    context |= table_context(page, request.GET, decided, None if stated is None else frozenset(stated))
    if stated is None and decided and not is_partial(request) and context["table"].rows:
        shown = [column.key for column in context["table"].columns]
        return redirect(with_columns(request.get_full_path(), shown or ["none"]))
    return render(request, "experiment/table.html", context)


@require_GET
def time(request: HttpRequest, slug: str) -> HttpResponse:
    """Show where the time of the steps goes, and what to try next."""
    page = _page(request, slug)
    best = fastest_run(page.experiment)
    context = _context(request, page, "experiment-time") | time_context(page)
    context |= {"run": best, "edges": edges_of(page.experiment, best) if best else []}
    return render(request, "experiment/time.html", context | (advice_context(best, is_new=True) if best else {}))


@require_GET
def compare(request: HttpRequest, slug: str) -> HttpResponse:
    """Compare runs of an experiment: `?compare=3,7` by number, `?runs=…` by id, by default the best of each group.

    `?versions=1,2` compares the fastest run of each version.
    """
    if request.GET.get("axis"):
        return redirect(with_brush(request))
    page = _page(request, slug)
    numbers = {text for text in request.GET.get("compare", "").split(",") if text}
    chosen = [row.run.pk for row in page.listed.rows if str(row.run.number) in numbers]
    ids = chosen_ids(request) or _best_of_versions(page.experiment, request) or chosen
    ids = ids or _best_of_groups(page.listed.rows)
    context = _context(request, page, "experiment-compare") | comparison_context(request, ids)
    own = {row.run.pk: row for row in page.listed.rows}
    context["chips"] = [own[pk] for pk in ids if pk in own]
    context["further"] = [row for pk, row in own.items() if pk not in ids][:MAX_OFFERED]
    return render(request, "experiment/compare.html", context)


def _best_of_versions(experiment: Experiment, request: HttpRequest) -> list[int]:
    """Return the fastest finished run of each version that the address names, in their order."""
    versions = whole_numbers(request.GET.get("versions", "").split(","))[:COMPARED]
    finished = Run.objects.filter(experiment=experiment, state=RunState.FINISHED, step_time_s__isnull=False)
    of_versions = finished.filter(config__version__in=versions).order_by("-step_time_s")
    # The last of a version is its fastest.
    best = dict(of_versions.values_list("config__version", "pk"))
    return [best[version] for version in dict.fromkeys(versions) if version in best]


def _best_of_groups(rows: list[ListedRun]) -> list[int]:
    """Return the best run of each group; of the only group the best ones."""
    first: dict[str, int] = {}
    for row in rows:
        if row.run.is_final:
            first.setdefault(row.shown.group, row.run.pk)
    ids = list(first.values()) if len(first) > 1 else [row.run.pk for row in rows if row.run.is_final]
    return ids[:COMPARED]


@require_GET
def configuration(request: HttpRequest, slug: str) -> HttpResponse:
    """Show what an experiment is made of: versions, points that cannot run, files, findings."""
    page = _page(request, slug)
    context = _context(request, page, "experiment-configuration") | configuration_context(page)
    return render(request, "experiment/configuration.html", context)


@require_GET
def report(request: HttpRequest, slug: str) -> HttpResponse:
    """Show what people wrote about an experiment: reports, notes, comments."""
    page = _page(request, slug)
    context = _context(request, page, "experiment-report") | report_context(page.experiment)
    return render(request, "experiment/report.html", context)


@require_GET
def live(request: HttpRequest, slug: str) -> HttpResponse:
    """Answer a poll with the list of runs and the answer, or with nothing if they have not changed."""
    page = _page(request, slug)
    if request.GET.get("seen") == page.seen:
        return HttpResponse(status=UNCHANGED)
    tab = request.GET.get("tab", "experiment")
    if tab not in dict(TABS):
        raise Http404(f"Unknown tab {tab[:40]}.")
    return render(request, "experiment/live.html", page.context(tab) | {"repeat_url": _repeat_url(page)})
