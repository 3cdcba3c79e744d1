"""Comparison of selected runs: differences of configurations, results, curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from parlab.charts.importance import importances
from parlab.charts.measures import Measure, measured
from parlab.charts.points import RunPoint
from parlab.charts.sweeps import compare as charts
from parlab.charts.sweeps import parallel
from parlab.charts.sweeps.compare import CURVES
from parlab.charts.sweeps.parallel import Brush, brush_of
from parlab.charts.theme import Drawing
from parlab.lab.models import Experiment, Run
from parlab.lab.selectors.analysis.repeats import repeat_groups
from parlab.lab.selectors.analysis.sweep_advice import fastest_run
from parlab.lab.selectors.comparison import results as comparisons
from parlab.lab.selectors.lists import matching_runs
from parlab.pages.reads.comparing.heads import column_names, comparison_head
from parlab.pages.reads.comparing.pools import compare_pools, pool_names
from parlab.publishing.figures.chosen_ranks import ranks_in
from parlab.publishing.figures.compared_curves import curves_drawing, run_name
from parlab.publishing.figures.windows import WHOLE, Window, window_of
from parlab.whole_numbers import whole_numbers
from runners.wire.protocol import RunState

from .figures import csv_response, json_response

MAX_RUNS = 100
MAX_EXPERIMENTS = 20
RECENT = 5
_LETTERS = 26
MAX_BRUSHES = 12
_TYPED = ("axis", "low", "high")
"""Fields of the form that selects a range."""
_CURVE_CHOICES = ("over", "y_scale", "repeats", "ranks", "brush")


def chosen_ids(request: HttpRequest) -> list[int]:
    """Return the run ids of `?runs=3,7` (or `?run=3&run=7`, as sent by a form) without duplicates."""
    texts = [*request.GET.get("runs", "").split(","), *request.GET.getlist("run")]
    return list(dict.fromkeys(whole_numbers(texts)))


@require_GET
def compare(request: HttpRequest) -> HttpResponse:
    """Show selected runs of any experiments side by side."""
    if request.GET.getlist("pool"):
        return _pools(request)
    if request.GET.getlist("experiment"):
        return redirect(f"{reverse('compare')}?runs={_joined(_fastest_ids(request))}")
    ids = chosen_ids(request)
    if request.GET.getlist("run"):
        # Sent by a form: redirect to the short URL, which is the one to share.
        return redirect(f"{reverse('compare')}?runs={_joined(ids)}")
    if request.GET.get("axis"):
        return redirect(with_brush(request))
    context = comparison_context(request, ids)
    if context["is_empty"]:
        ended = Run.objects.filter(state=RunState.FINISHED).select_related("experiment")
        context["recent"] = list(ended.order_by("-ended_at", "-pk")[:RECENT])
    return render(request, "pages/compare/compare.html", {"section": "compare", **context})


def _fastest_ids(request: HttpRequest) -> list[int]:
    """Return the ids of the fastest run of each chosen experiment, `?experiment=3&experiment=7`."""
    chosen = list(dict.fromkeys(whole_numbers(request.GET.getlist("experiment"))))[:MAX_EXPERIMENTS]
    experiments = Experiment.objects.in_bulk(chosen)
    best = [fastest_run(experiments[pk]) for pk in chosen if pk in experiments]
    return [run.pk for run in best if run is not None]


def _pools(request: HttpRequest) -> HttpResponse:
    """Show two pools of nodes side by side (`?pool=a&pool=b`); the first two where none is named."""
    known = pool_names()
    asked = [pool for pool in request.GET.getlist("pool") if pool in known]
    chosen = list(dict.fromkeys([*asked, *known]))[:2]
    context: dict[str, Any] = {"section": "nodes", "known": known}
    if len(chosen) == 2:
        context["pools"] = compare_pools(chosen[0], chosen[1], timezone.now())
    return render(request, "pages/compare/pools.html", context)


def comparison_context(request: HttpRequest, ids: list[int]) -> dict[str, Any]:
    """Return what the template of a comparison shows of these runs."""
    runs = matching_runs(ids[:MAX_RUNS])
    whole = comparisons.compare(runs, is_pooled=_is_pooled(request))
    brushes = _brushes(request)
    chosen = _selected_runs(whole, brushes)
    comparison = whole if len(chosen) == len(runs) else comparisons.compare(chosen, is_pooled=_is_pooled(request))
    present = [run.pk for run in runs]
    names = column_names(whole.runs)
    shown = [names[run.pk] for run in comparison.runs]
    measures = measured(whole.points)
    axes = parallel.axis_titles(whole.points)
    titles = {name: title for name, title, _labels in axes}
    result = request.GET.get("result", "")
    result = result if result in measures else next(iter(measures), "")
    return {
        "comparison": comparison,
        "columns": [
            _column(group, runs.index(group[0]), present) | {"name": name, "letter": _letter(place)}
            for place, (group, name) in enumerate(zip(comparison.groups, shown, strict=True))
        ],
        "head": comparison_head(comparison, shown, runs) if len(comparison.runs) > 1 else None,
        "is_pair": len(comparison.runs) == 2,
        "several_experiments": len({run.experiment_id for run in comparison.runs}) > 1,
        "compared_ids": _joined(present),
        "is_empty": len(runs) < 2,
        "total": len(runs),
        "selectable": len(whole.runs),
        "brushes": [(brush, titles.get(brush.axis, brush.axis), _without(request, brush)) for brush in brushes],
        "brush_axes": axes,
        **_importance(comparison.points, measures.get(result)),
        "fields_total": len(comparison.differences) + len(comparison.same),
        "result_choices": [(name, measure.title, name == result) for name, measure in measures.items()],
        "missing": len(ids[:MAX_RUNS]) - len(runs),
        "too_many": max(0, len(ids) - MAX_RUNS),
        "max_runs": MAX_RUNS,
        "curves": [(name, curve.title) for name, curve in CURVES.items()],
        "chosen_curves": _kinds(request),
        "chosen_ranks": ranks_in(request.GET.get("ranks", "")).text,
        "over": _over(request),
        "overs": [(name, name) for name in charts.OVER],
        "is_log": _is_log(request),
        "is_pooled": _is_pooled(request),
        "kept": [(name, value) for name, values in request.GET.lists() if name not in _TYPED for value in values],
        "parallel_query": urlencode(_chosen(request, ("repeats", "brush"))),
        "curve_query": urlencode([*(("curve", kind) for kind in _kinds(request)), *_chosen(request, _CURVE_CHOICES)]),
    }


def _column(group: list[Run], place: int, present: list[int]) -> dict[str, Any]:
    """Return the heading of a run, or of repeats with their mean."""
    own = [run.pk for run in group]
    others = [pk for pk in present if pk not in own]
    return {
        "run": group[0],
        "place": place,
        "without": _joined(others),
        "first": _joined([*own, *others]),
        "count": len(group),
        "repeats": ", ".join(f"#{run.number}" for run in group) if len(group) > 1 else "",
    }


def _importance(points: list[RunPoint], measure: Measure | None) -> dict[str, Any]:
    """Return the settings on which a result depends: only those whose correlation chance does not explain."""
    if measure is None:
        return {"importance": None}
    every = importances(points, measure)
    rows = [row for row in every.rows if not row.is_chance]
    return {"importance": every._replace(rows=rows), "without_evidence": len(every.rows) - len(rows)}


def _letter(place: int) -> str:
    """Return the letter of a column: A to Z; further ones have none."""
    return chr(ord("A") + place) if place < _LETTERS else ""


def _joined(ids: list[int]) -> str:
    return ",".join(map(str, ids))


def _over(request: HttpRequest) -> str:
    over = request.GET.get("over", "")
    return over if over in charts.OVER else "steps"


def _is_log(request: HttpRequest) -> bool:
    return request.GET.get("y_scale") == "log"


def _is_pooled(request: HttpRequest) -> bool:
    return request.GET.get("repeats") == "pooled"


def _chosen(request: HttpRequest, names: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(name, value) for name in names for value in request.GET.getlist(name)[:MAX_BRUSHES]]


def _brushes(request: HttpRequest) -> list[Brush]:
    """Return the ranges that are selected on the parallel axes, the last one of each axis."""
    brushes = [brush for text in request.GET.getlist("brush")[:MAX_BRUSHES] if (brush := brush_of(text))]
    return list({brush.axis: brush for brush in brushes}.values())


def with_brush(request: HttpRequest) -> str:
    """Return the address with the range of the form, which replaces an earlier one of the same axis."""
    query = request.GET.copy()
    axis, low, high = (query.get(name, "").strip() for name in _TYPED)
    brush = Brush(axis, low or high, high or low)
    for name in _TYPED:
        query.pop(name, None)
    others = [text for text in query.getlist("brush") if not text.startswith(f"{axis}:")]
    query.setlist("brush", [*others, *([brush.text] if brush.low else [])])
    return f"?{query.urlencode(safe=',:')}"


def _without(request: HttpRequest, brush: Brush) -> str:
    """Return the query of this page without one selection."""
    query = request.GET.copy()
    query.setlist("brush", [text for text in query.getlist("brush") if not text.startswith(f"{brush.axis}:")])
    return query.urlencode(safe=",:")


def _selected_runs(comparison: comparisons.Comparison, brushes: list[Brush]) -> list[Run]:
    """Return the runs within the selected ranges, with their repeats."""
    chosen = parallel.selected(comparison.points, brushes)
    return [run for group, is_selected in zip(comparison.groups, chosen, strict=True) if is_selected for run in group]


def _kinds(request: HttpRequest) -> list[str]:
    """Return the chosen curves in the order of CURVES, by default the first."""
    chosen = request.GET.getlist("curve")
    return [kind for kind in CURVES if kind in chosen] or list(CURVES)[:1]


def _names(runs: list[Run], *, is_pooled: bool) -> Callable[[Run], str]:
    """Return how figures name runs: by what differs, or by experiment and number where they are of several."""
    if len({run.experiment_id for run in runs}) > 1:
        return run_name
    names = column_names([group[0] for group in repeat_groups(runs)] if is_pooled else runs)
    return lambda run: names.get(run.pk) or run_name(run)


@require_GET
def compare_json(request: HttpRequest, name: str) -> HttpResponse:
    return json_response(_drawing(request, name, window_of(request.GET)))


@require_GET
def compare_csv(request: HttpRequest, name: str) -> HttpResponse:
    return csv_response(_drawing(request, name, WHOLE).table, f"compare-{name}.csv")


def _drawing(request: HttpRequest, name: str, window: Window) -> Drawing:
    runs = matching_runs(chosen_ids(request)[:MAX_RUNS])
    named = _names(runs, is_pooled=_is_pooled(request))
    if name == "parallel":
        comparison = comparisons.compare(runs, is_pooled=_is_pooled(request))
        return parallel.parallel(comparison.points, [named(run) for run in comparison.runs], _brushes(request))
    if name != "curves":
        raise Http404(f"no figure {name}; there are curves, parallel")
    places = None
    if brushes := _brushes(request):
        chosen = _selected_runs(comparisons.compare(runs, is_pooled=_is_pooled(request)), brushes)
        places = [runs.index(run) for run in chosen]
    return curves_drawing(
        runs,
        _kinds(request),
        window,
        over=_over(request),
        is_log=_is_log(request),
        is_pooled=_is_pooled(request),
        chosen_ranks=ranks_in(request.GET.get("ranks", "")),
        places=places,
        named=named,
    )
