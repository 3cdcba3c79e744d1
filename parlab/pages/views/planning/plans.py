"""The planner page: a sentence and pictures of a training, the search for layouts, and other clusters."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_GET, require_POST
from pydantic import ValidationError

from parlab.charts import theme
from parlab.charts.sweeps import predicted
from parlab.charts.sweeps.predicted import SizePoint
from parlab.charts.theme import Drawing, Table
from parlab.lab.selectors.analysis.plans import calibration_pool, device_named, devices, devices_like, priced
from parlab.pages.forms.plan_fields import CHOSEN, MAIN, controls
from parlab.pages.forms.plan_query import LONGEST, PlanQuery, query_of, read_question
from parlab.pages.reads.planning import plans as reads
from parlab.pages.reads.planning.versus import other_question, versus, versus_text
from parlab.pages.views.experiments.figures import csv_response, json_response
from parlab.planner import Calibration
from parlab.planner.job.cluster import device, unknown_device
from parlab.planner.job.hardware import Gpu
from parlab.planner.job.huggingface import read_config
from parlab.planner.job.presets import PRESETS, Preset, placed_on, preset, usual_question
from parlab.planner.job.workload import Job
from parlab.planner.requests.answer import best_layout, outline, short_runs, with_some_layout
from parlab.planner.requests.layout_fields import layout_fields
from parlab.planner.requests.refusals import refusals
from parlab.planner.requests.request import PlanRequest
from parlab.planner.search.cluster_comparison import OtherCluster, Side, moved, side
from parlab.planner.search.frontier import Choice, enough
from parlab.planner.search.layouts import Layout
from parlab.planner.search.short_runs import CALIBRATED_ERROR, UNSEEN_ERROR
from parlab.whole_numbers import whole_number

_LONGEST_CONFIG = 100_000
_CONFIG_TOKENS = 4096
"""Tokens of a sequence of the question about a config.json, which states only the longest."""
_FIRST_MODEL = "Llama 3 70B"
"""The plan that the page opens with."""
_LARGEST_LIMIT = 1e7
SHOWN_LAYOUTS = 5
_LAYOUT_FIELDS = frozenset(layout_fields(PlanRequest().job()))


@require_GET
def plan(request: HttpRequest) -> HttpResponse:
    if not request.GET:
        return redirect(f"{reverse('plan-model')}?{urlencode({'name': _FIRST_MODEL})}")
    plan_query = read_question(request, is_strict=True)
    return render(request, "pages/plan/plan.html", _context(request, plan_query))


@require_GET
def plan_model(request: HttpRequest) -> HttpResponse:
    """Open a question with its best layout: a known model or the sizes in the query, GPUs, and a limit.

    `?gpus=` is the number of GPUs; without it the fewest are chosen that keep the limit. `?limit=` is a number of days,
    or of millions with `&unit=cost`. Other fields of a question are kept while the model stays the same.
    """
    name = request.GET.get("name", "")
    entry = preset(name)
    if name and entry is None:
        return redirect(f"{reverse('plan')}?{urlencode({'model': name[:LONGEST]})}")
    try:
        query = _picked(_picks(request, entry))
    except ValidationError as error:
        messages.error(request, " ".join(refusal.message for refusal in refusals(error)))
    except ValueError as error:
        messages.error(request, str(error))
    else:
        return redirect(f"{reverse('plan')}?{query}")
    return redirect(f"{reverse('plan')}?{_kept_query(request, entry)}")


class Picks(NamedTuple):
    """What the line above the plan asks for."""

    entry: Preset | None
    kept: tuple[tuple[str, str], ...]
    """Fields of the question that stay."""
    gpus: int
    """0: as many as the limit needs."""
    gpu: str
    limit: float | None
    is_cost: bool


def _picks(request: HttpRequest, entry: Preset | None) -> Picks:
    limit_text, gpus_text = request.GET.get("limit", "").strip(), request.GET.get("gpus", "").strip().replace(",", "")
    is_same = entry is None or request.GET.get("model") == entry.name
    left_out = _LAYOUT_FIELDS | {"model", "gpu", "nodes", "gpus_per_node", "wanted_days", "wanted_cost", "huggingface"}
    kept = tuple(
        (field, value[:LONGEST])
        for field, value in _stated(request).items()
        if is_same and field not in left_out and value.strip()
    )
    gpus = whole_number(gpus_text, 7) if gpus_text else 0
    if gpus is None or (gpus_text and not gpus):
        raise ValueError(f"GPUs {gpus_text[:20]!r} is no number of GPUs; use 1 to 9999999, or leave it empty")
    try:
        limit = float(limit_text) if limit_text else None
    except ValueError:
        limit = math.nan
    if limit is not None and not 0 < limit <= _LARGEST_LIMIT:
        raise ValueError(f"limit {limit_text[:20]!r} is no number of days or millions; use more than 0, or nothing")
    is_cost = request.GET.get("unit") == "cost"
    return Picks(entry, kept, gpus, request.GET.get("gpu", "")[:LONGEST], limit, is_cost)


def _kept_query(request: HttpRequest, entry: Preset | None) -> str:
    """Return the question as it was, with the chosen model; what is wrong in the line above the plan stays out."""
    kept = {field: value for field, value in _stated(request).items() if field != "gpu" or device_named(value)}
    return query_of(kept | ({"model": entry.name} if entry else {}) or {"model": _FIRST_MODEL})


def _picked(picks: Picks) -> str:
    return _query_of_picks(picks, _picked_device(picks.gpu) if picks.gpu else None)


def _picked_device(text: str) -> Gpu:
    """Return the device that is chosen, or typed in part: `h100`."""
    names = [device.name for device in devices()]
    gpu = device_named(text) or device_named(next(iter(devices_like(text, names)), ""))
    if gpu is None:
        raise ValueError(unknown_device(text, names))
    return gpu


def _query_of_picks(picks: Picks, chosen: Gpu | None) -> str:
    entry = picks.entry
    fields: dict[str, Any] = usual_question(entry, picks.gpus) if entry else {}
    fields |= dict(picks.kept)
    gpu = chosen or device(str(fields.get("gpu", "H100 SXM")))
    fields["gpu"] = gpu.name
    if entry is None and picks.gpus:
        fields |= placed_on(picks.gpus)
    if picks.limit is not None:
        fields["wanted_days"] = None if picks.is_cost else picks.limit
        fields["wanted_cost"] = 1e6 * picks.limit if picks.is_cost else None
    elif picks.gpus and picks.gpu:
        fields["wanted_days"] = None
    # The price is read anew, since an administrator may change it; only the searches are kept.
    request = priced(with_some_layout(fields))[0]
    if picks.gpus or picks.limit is None:
        best = _best(request, gpu)
        return query_of(fields | (layout_fields(best) if best else {}))
    choice = _enough(request, gpu)
    return query_of(fields | (placed_on(choice.gpus) | layout_fields(choice.layout.job) if choice else {}))


@lru_cache(maxsize=64)
def _best(question: PlanRequest, gpu: Gpu) -> Job | None:
    return best_layout(question, gpu)


@lru_cache(maxsize=64)
def _enough(question: PlanRequest, gpu: Gpu) -> Choice | None:
    return enough(question, gpu)


@require_POST
def plan_config(request: HttpRequest) -> HttpResponse:
    """Open the question about the model of a pasted config.json, with its best layout on the usual cluster."""
    text = request.POST.get("config", "")[:_LONGEST_CONFIG]
    try:
        config = json.loads(text)
        if not isinstance(config, dict):
            raise ValueError("the text is not a JSON object; paste the whole config.json")
        reading = read_config(config, _CONFIG_TOKENS)
        query = _query_of_picks(Picks(Preset("", reading.model, "config.json"), (), 0, "", None, is_cost=False), None)
    except ValueError as error:
        messages.error(request, f"config.json was not read: {error}")
        return redirect("plan")
    return redirect(f"{reverse('plan')}?{query}&{urlencode({'huggingface': reading.summary[:LONGEST]})}")


@require_GET
def plan_layouts(request: HttpRequest) -> HttpResponse:
    """Return days against cost, what would keep the limits, and the best layouts, which the page asks for."""
    plan_query = read_question(request)
    question, outline, gpu = plan_query.question, plan_query.outline, plan_query.gpu
    if question is None or outline is None or gpu is None:
        return render(request, "pages/plan/plan_layouts.html", {"error": plan_query.refusal})
    try:
        found = plan_query.search()
        around = reads.frontier(question, gpu, outline, plan_query.calibration, plan_query.currency)
    except ValueError as error:
        return render(request, "pages/plan/plan_layouts.html", {"error": str(error)})
    own = outline.prediction.job
    shown = _with_own(found.fitting[:SHOWN_LAYOUTS], found.fitting, own)
    rows = reads.layout_rows(question, own, shown)
    context = {
        "frontier": around,
        "remedies": [(remedy, _query_of_remedy(question, request, remedy)) for remedy in around.remedies],
        "rows": [
            (row, _query_with(request, layout_fields(row.layout.job)), _versus_query(request, row)) for row in rows
        ],
        "versus": request.GET.get("versus", ""),
        "tried": found.tried,
        "question": question,
        "capacity_gib": f"{outline.prediction.cluster.device.memory_bytes / 2**30:g}",
        "currency": plan_query.currency,
        "risk": found.risky,
        "risk_text": reads.layout_text(found.risky.layout) if found.risky else "",
        "risk_query": _query_with(request, layout_fields(found.risky.layout.job)) if found.risky else "",
        "address": request.GET.urlencode(),
        "short_runs": short_runs(found),
        "usual_error": UNSEEN_ERROR,
        "calibrated_error": CALIBRATED_ERROR,
    }
    return render(request, "pages/plan/plan_layouts.html", context)


def _versus_query(request: HttpRequest, row: reads.LayoutRow) -> str:
    """Return the query that compares the plan with a layout; empty for its own."""
    return "" if row.is_own else _query_with(request, {"versus": versus_text(row.layout.job)})


@require_GET
def plan_versus(request: HttpRequest) -> HttpResponse:
    """Return the plan beside the layout of `?versus=`."""
    plan_query = read_question(request)
    question, first, gpu = plan_query.question, plan_query.outline, plan_query.gpu
    if question is None or first is None or gpu is None:
        return render(request, "pages/plan/plan_versus.html", {"error": plan_query.refusal})
    try:
        other = other_question(question, request.GET.get("versus", ""))
        second = outline(other, gpu, plan_query.calibration)
    except ValidationError as error:
        return render(request, "pages/plan/plan_versus.html", {"error": refusals(error)[0].message})
    except ValueError as error:
        return render(request, "pages/plan/plan_versus.html", {"error": str(error)})
    context = {
        "versus": versus(question, first, second, plan_query.currency),
        "other_query": _query_with(request, layout_fields(second.prediction.job)),
        "own_query": _query_with(request, {}),
    }
    return render(request, "pages/plan/plan_versus.html", context)


def _with_own(shown: Sequence[Layout], every: Sequence[Layout], own: Job) -> list[Layout]:
    """Return the best layouts, and the plan's own one if it is a slower one of the search."""
    fields = layout_fields(own)
    if any(layout_fields(layout.job) == fields for layout in shown):
        return list(shown)
    return [*shown, *(layout for layout in every if layout_fields(layout.job) == fields)]


def _query_of_remedy(question: PlanRequest, request: HttpRequest, remedy: reads.Remedy) -> str:
    limit = {"limit": f"{question.wanted_days:g}"} if question.wanted_days else {}
    if question.wanted_cost:
        limit = {"limit": f"{question.wanted_cost / 1e6:g}", "unit": "cost"}
    return urlencode({
        **_stated(request), "name": question.model or "", "gpus": str(remedy.gpus), "gpu": remedy.device, **limit,
    })  # fmt: skip


def _stated(request: HttpRequest) -> dict[str, str]:
    """Return the fields of a question that the address states."""
    return {name: request.GET.get(name, "") for name in PlanRequest.model_fields if name in request.GET}


@require_GET
def plan_search(request: HttpRequest) -> HttpResponse:
    """Return the layouts and numbers of nodes of a question, which the page requests after the prediction."""
    plan_query = read_question(request)
    try:
        result = plan_query.sizing()
    except ValueError as error:
        return render(request, "pages/plan/plan_search.html", {"error": str(error)})
    context = {
        "answer": result,
        "address": request.GET.urlencode(),
        "asked": request.GET.items(),
        "devices": devices(),
        "question": plan_query.question,
        "prediction": plan_query.outline and plan_query.outline.prediction,
    }
    return render(request, "pages/plan/plan_search.html", context)


@require_GET
def plan_beside(request: HttpRequest) -> HttpResponse:
    """Return the best layouts of a question on its cluster and on another one, given by fields with `other_`."""
    plan_query = read_question(request)
    question, gpu = plan_query.question, plan_query.gpu
    if question is None or gpu is None:
        return render(request, "pages/plan/plan_comparison.html", {"error": plan_query.refusal})
    typed = {
        name: request.GET[f"other_{name}"][:LONGEST]
        for name in OtherCluster.model_fields
        if request.GET.get(f"other_{name}", "").strip()
    }
    try:
        other = OtherCluster.model_validate(typed)
        other_gpu = device_named(other.gpu)
        if other_gpu is None:
            raise ValueError(unknown_device(other.gpu, [device.name for device in devices()]))
        sides = [_side(question, gpu, plan_query.calibration), _side(moved(question, other), other_gpu, None)]
    except ValidationError as error:
        messages = [f"other_{refusal.message}" for refusal in refusals(error)]
        return render(request, "pages/plan/plan_comparison.html", {"error": " ".join(messages)})
    except ValueError as error:
        return render(request, "pages/plan/plan_comparison.html", {"error": str(error)})
    texts = [reads.layout_text(part.layout) if part.layout else "" for part in sides]
    return render(request, "pages/plan/plan_comparison.html", {"sides": list(zip(sides, texts, strict=True))})


@lru_cache(maxsize=64)
def _side(question: PlanRequest, gpu: Gpu, calibration: Calibration | None) -> Side:
    return side(question, gpu, calibration)


def _query_with(request: HttpRequest, changes: Mapping[str, Any]) -> str:
    """Return the query of a question with other values of some fields."""
    fields: dict[str, Any] = {name: value for name, value in request.GET.items() if name != "versus"}
    return query_of(fields | dict(changes))


def _context(request: HttpRequest, plan_query: PlanQuery) -> dict[str, Any]:
    answer = plan_query.outline
    query = request.GET.urlencode()
    pool = calibration_pool()
    context: dict[str, Any] = {
        "section": "plan",
        "fields": plan_query.fields,
        "devices": devices(),
        "presets": PRESETS,
        "more": controls(plan_query.fields),
        "has_more": any(request.GET.get(name) for name in PlanRequest.model_fields if name not in MAIN | CHOSEN),
        "groups": pool.groups,
        "sources": pool.sources,
        "refusals": plan_query.refusals,
        "answer": answer,
        "address": query,
        "versus": request.GET.get("versus", ""),
        "price": plan_query.price,
        "currency": plan_query.currency,
        "picks": _shown_picks(request, plan_query),
    }
    if answer is None or plan_query.question is None:
        return context
    return context | {
        "pictures": reads.pictures(plan_query.question, answer, plan_query.currency),
        "question": plan_query.question,
        "prediction": answer.prediction,
        "warning": plan_query.warning,
    }


class ShownPicks(NamedTuple):
    """The controls of the line above the plan."""

    model: str
    gpus: str
    gpu: str
    limit: str
    is_cost: bool
    kept: list[tuple[str, str]]
    """Hidden fields: all that the question states."""


def _shown_picks(request: HttpRequest, plan_query: PlanQuery) -> ShownPicks:
    question, fields = plan_query.question, plan_query.fields
    entry = preset(fields.get("model", ""))
    cost = question.wanted_cost if question else None
    days = question.wanted_days if question else None
    limit = f"{cost / 1e6:g}" if cost else f"{days:g}" if days else ""
    own = {"gpu", "nodes", "gpus_per_node", "wanted_days", "wanted_cost"} | _LAYOUT_FIELDS
    kept = [(name, value) for name, value in _stated(request).items() if name not in own]
    return ShownPicks(
        entry.name if entry else "", str(question.gpus) if question else "", fields["gpu"], limit, bool(cost), kept
    )


def _points(request: HttpRequest) -> tuple[list[SizePoint], PlanQuery]:
    """Return the numbers of nodes of a question; none if it has errors."""
    plan_query = read_question(request)
    result = plan_query.sizing()
    if result is None or plan_query.question is None:
        return [], plan_query
    per_node = plan_query.question.gpus_per_node
    points = [
        SizePoint(
            size.nodes,
            size.nodes * per_node,
            size.budget.days if size.budget else None,
            size.budget.days_low if size.budget else None,
            size.budget.days_high if size.budget else None,
            reads.layout_text(size.layout) if size.layout else "",
            size.budget.gpu_hours if size.budget else None,
            size.budget.cost if size.budget else None,
        )
        for size in result.sizes
    ]
    return points, plan_query


def _drawing(request: HttpRequest, draw: Callable[[list[SizePoint], float | None], Drawing]) -> Drawing:
    points, plan_query = _points(request)
    if not points or plan_query.question is None:
        return theme.nothing(plan_query.refusals[0].message if plan_query.refusals else "Nothing to draw.")
    return draw(points, plan_query.question.wanted_days)


@require_GET
def trade_off_json(request: HttpRequest) -> HttpResponse:
    return json_response(_drawing(request, predicted.trade_off))


@require_GET
def trade_off_csv(request: HttpRequest) -> HttpResponse:
    return csv_response(_drawing(request, predicted.trade_off).table, "nodes-against-days.csv")


@require_GET
def cost_csv(request: HttpRequest) -> HttpResponse:
    """Return days against cost of the compared devices, which the page draws, as CSV."""
    plan_query = read_question(request)
    question, outline, gpu = plan_query.question, plan_query.outline, plan_query.gpu
    rows: list[list[Any]] = []
    if question is not None and outline is not None and gpu is not None:
        days = reads.around(question, outline.budget)
        rows = [
            [
                choice.device, choice.gpus, choice.budget.days, choice.budget.days_low, choice.budget.days_high,
                choice.budget.cost, choice.fits_probability, reads.layout_text(choice.layout),
            ]
            for choice in reads.choices_of(question, gpu, days, plan_query.calibration, plan_query.currency)
        ]  # fmt: skip
    header = ["device", "gpus", "days", "days_low", "days_high", "cost", "fits_probability", "layout"]
    return csv_response(Table(header, rows), "cost-against-days.csv")
