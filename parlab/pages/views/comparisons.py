"""Comparison of selected runs: differences of configurations, results, curves."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import numpy as np
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET
from numpy.typing import NDArray

from parlab.charts import compare as charts
from parlab.charts.compare import CURVES, Line
from parlab.charts.curves import Curve
from parlab.charts.theme import Drawing
from parlab.lab import selectors
from parlab.lab.models import Attempt, Run
from parlab.pages.repeats import pooled
from parlab.pages.rows import comparisons
from parlab.pages.windows import WHOLE, Window, seen, window_of
from parlab.series import store
from parlab.series.columns import Columns

from .figures import csv_response, json_response

MAX_RUNS = 100
_CURVE_CHOICES = ("over", "y_scale", "repeats")
CURVES_POINTS = 6_000
"""Total number of points of the curves, shared by all lines."""


def chosen_ids(request: HttpRequest) -> list[int]:
    """Return the run ids of `?runs=3,7` (or `?run=3&run=7`, as sent by a form) without duplicates."""
    texts = [*request.GET.get("runs", "").split(","), *request.GET.getlist("run")]
    ids = [int(text) for text in texts if text.isascii() and text.isdecimal() and len(text) < 19]
    return list(dict.fromkeys(ids))


@require_GET
def compare(request: HttpRequest) -> HttpResponse:
    """Show selected runs side by side."""
    ids = chosen_ids(request)
    if request.GET.getlist("run"):
        # Sent by a form: redirect to the short URL, which is the one to share.
        return redirect(f"{reverse('compare')}?runs={_joined(ids)}")
    runs = selectors.matching_runs(ids[:MAX_RUNS])
    comparison = comparisons.compare(runs)
    present = [run.pk for run in runs]
    context: dict[str, Any] = {
        "section": "compare",
        "comparison": comparison,
        "columns": [_column(run, place, present) for place, run in enumerate(runs)],
        "runs": _joined(present),
        "missing": len(ids[:MAX_RUNS]) - len(runs),
        "too_many": max(0, len(ids) - MAX_RUNS),
        "max_runs": MAX_RUNS,
        "curves": [(name, curve.title) for name, curve in CURVES.items()],
        "curve": _kind(request),
        "over": _over(request),
        "overs": [(name, name) for name in charts.OVER],
        "is_log": _is_log(request),
        "is_pooled": _is_pooled(request),
        "curve_query": urlencode(
            {"curve": _kind(request)} | {name: request.GET[name] for name in _CURVE_CHOICES if name in request.GET}
        ),
    }
    return render(request, "pages/compare.html", context)


def _column(run: Run, place: int, present: list[int]) -> dict[str, Any]:
    others = [pk for pk in present if pk != run.pk]
    first = [run.pk, *others]
    return {"run": run, "place": place, "without": _joined(others), "first": _joined(first), "name": _name(run)}


def _joined(ids: list[int]) -> str:
    return ",".join(map(str, ids))


def _name(run: Run) -> str:
    return f"{run.experiment.name} #{run.number}"


def _over(request: HttpRequest) -> str:
    over = request.GET.get("over", "")
    return over if over in charts.OVER else "steps"


def _is_log(request: HttpRequest) -> bool:
    return request.GET.get("y_scale") == "log"


def _is_pooled(request: HttpRequest) -> bool:
    return request.GET.get("repeats") == "pooled"


def _kind(request: HttpRequest) -> str:
    curve = request.GET.get("curve", "")
    return curve if curve in CURVES else next(iter(CURVES))


@require_GET
def compare_json(request: HttpRequest, name: str) -> HttpResponse:
    return json_response(_drawing(request, name, window_of(request.GET)))


@require_GET
def compare_csv(request: HttpRequest, name: str) -> HttpResponse:
    return csv_response(_drawing(request, name, WHOLE).table, f"compare-{name}.csv")


def _drawing(request: HttpRequest, name: str, window: Window) -> Drawing:
    runs = selectors.matching_runs(chosen_ids(request)[:MAX_RUNS])
    if name == "parallel":
        return charts.parallel(comparisons.compare(runs).points, [_name(run) for run in runs])
    if name != "curves":
        raise Http404(f"no figure {name}; there are curves, parallel")
    kind, over = _kind(request), _over(request)
    columns_by_place = _slowest(runs, CURVES[kind].metrics)
    tokens = [_tokens_per_step(run) for run in runs]
    x = {place: _x(columns, over, tokens[place]) for place, columns in columns_by_place.items()}
    visible_columns = seen(columns_by_place, window.sized(CURVES_POINTS), x)
    starts = {place: float(columns.times[0]) for place, columns in columns_by_place.items()}
    lines = {
        place: Line(
            _name(run),
            visible_columns[place].curve if place in visible_columns else Curve([], [], []),
            starts.get(place),
            tokens[place],
        )
        for place, run in enumerate(runs)
    }
    middle = [float(np.nanmedian(columns.values)) for columns in columns_by_place.values()]
    if _is_pooled(request):
        lines = pooled(runs, lines)
    drawing = charts.curves(kind, lines, over=over, is_log=_is_log(request), middle=middle)
    return drawing._replace(is_thinned=any(series.is_thinned for series in visible_columns.values()))


def _x(columns: Columns, over: str, tokens: float | None) -> NDArray[np.float64]:
    if over == "time":
        seconds: NDArray[np.float64] = columns.times - columns.times[0]
        return seconds
    steps: NDArray[np.float64] = columns.steps.astype(np.float64)
    return steps * (tokens or 1.0) if over == "tokens" else steps


def _tokens_per_step(run: Run) -> float | None:
    """Return the tokens of one step from the configuration; None if it does not contain the sizes."""
    batch = (run.resolved.get("train") or {}).get("global_batch_size")
    length = (run.resolved.get("model") or {}).get("sequence_length")
    return float(batch * length) if isinstance(batch, int) and isinstance(length, int) else None


def _slowest(runs: list[Run], metrics: tuple[str, ...]) -> dict[int, Columns]:
    """Read the curve of the rank with the highest median for the current attempt of each run, by place."""
    rows = Attempt.objects.filter(run__in=runs).values_list("run", "number", "pk")
    attempts = {(run, number): pk for run, number, pk in rows}
    current = {attempts.get((run.pk, run.attempt_number)): place for place, run in enumerate(runs)}
    current.pop(None, None)
    read = store.read_many([pk for pk in current if pk is not None], metrics)
    best: dict[int, tuple[int, float, Columns]] = {}
    for (attempt, metric, _rank), columns in read.items():
        finite = columns.values[np.isfinite(columns.values)]
        if not len(finite):
            continue
        rank = (-metrics.index(metric), float(np.median(finite)), columns)
        if attempt not in best or rank[:2] > best[attempt][:2]:
            best[attempt] = rank
    return {current[attempt]: columns for attempt, (_, _, columns) in best.items()}
