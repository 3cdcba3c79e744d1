"""The palette's answers: the list for a query, and what stands beside a selected row."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from parlab.charts.svg import Canvas, Margins, Svg
from parlab.lab.models import Run
from parlab.lab.selectors import palette
from parlab.lab.selectors.experiments import experiment_states
from parlab.lab.selectors.runs import step_time
from parlab.pages.reads.runs.losses import loss_curve
from parlab.whole_numbers import whole_numbers

from .search import groups, place_of

MAX_QUERY = 200
MAX_PICKED = 20
_SIZES = (("TP", "tensor_parallel_size"), ("PP", "pipeline_parallel_size"), ("DP", "data_parallel_size"))


@require_GET
def palette_list(request: HttpRequest) -> HttpResponse:
    """Return the rows for `?q=` as typed on the page `?at=`."""
    query = " ".join(request.GET.get("q", "").replace("\0", " ").split())[:MAX_QUERY]
    place = place_of(request.GET.get("at", "")[:1000])
    user = cast(User, request.user)
    context = {"query": query, "groups": groups(query, place=place, user=user, picked=_picked(request))}
    return _fresh(render(request, "frame/palette_list.html", context))


def _picked(request: HttpRequest) -> list[int]:
    texts = request.GET.get("picked", "").split(",")
    return whole_numbers(texts)[:MAX_PICKED]


def _fresh(response: HttpResponse) -> HttpResponse:
    response["Cache-Control"] = "no-store"
    return response


@require_GET
def palette_run(request: HttpRequest, pk: int) -> HttpResponse:
    """Show a run beside the list: its loss, speed, memory and layout."""
    user = cast(User, request.user)
    run = get_object_or_404(palette.visible_runs(user).select_related("experiment"), pk=pk)
    named = palette.named_runs([run.pk])[0]
    summary: dict[str, Any] = run.summary
    loss = summary.get("loss") or {}
    context = {
        "run": run,
        "name": named.name,
        "loss": _loss(run, named),
        "step_time": step_time(summary),
        "first_loss": loss.get("first"),
        "last_loss": loss.get("last"),
        "layout": " · ".join(f"{name} {size:.0f}" for name, field in _SIZES if (size := getattr(run, field))),
    }
    return _fresh(render(request, "frame/palette_run.html", context))


def _loss(run: Run, named: palette.NamedRun) -> Svg | None:
    """Draw the loss of a run over its steps; None without one."""
    xs, ys = loss_curve(run)
    if len(xs) < 2:
        return None
    canvas = Canvas(276, 110, (xs[0], xs[-1]), (min(ys), max(ys)), Margins(34, 6, 8, 22))
    canvas.y_axis().x_axis([xs[0], xs[-1]], "{:,.0f}".format)
    return canvas.line(xs, ys, named.look).svg(f"Loss of {named.name}, {ys[0]:.4g} to {ys[-1]:.4g}")


@require_GET
def palette_experiment(request: HttpRequest, pk: int) -> HttpResponse:
    """Show an experiment beside the list: its question and the states of its runs."""
    user = cast(User, request.user)
    experiment = get_object_or_404(palette.visible_experiments(user), pk=pk)
    context = {"experiment": experiment, "states": experiment_states([pk])[pk]}
    return _fresh(render(request, "frame/palette_experiment.html", context))
