"""The planner page: prediction of a training, search for layouts, comparison with published measurements."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.utils.http import urlencode
from django.views.decorators.http import require_GET, require_POST
from pydantic import ValidationError

from parlab.charts import theme
from parlab.charts.sweeps import predicted
from parlab.charts.sweeps.predicted import SizePoint
from parlab.charts.theme import Drawing
from parlab.lab.selectors.analysis.plans import calibration_pool, device_named, devices
from parlab.pages.forms.plan_fields import CHOSEN, MAIN, controls
from parlab.pages.forms.plan_query import LONGEST, PlanQuery, query_of, read_question
from parlab.pages.views.experiments.figures import csv_response, json_response
from parlab.pages.views.partial import is_partial
from parlab.planner import Calibration
from parlab.planner.calibration.coverage import warnings
from parlab.planner.job.cluster import device, unknown_device
from parlab.planner.job.hardware import Gpu
from parlab.planner.job.huggingface import read_config
from parlab.planner.job.presets import PRESETS, Preset, preset, usual_question
from parlab.planner.job.workload import Job
from parlab.planner.prediction.fitting import CONFIDENT
from parlab.planner.publications import sc21
from parlab.planner.requests.answer import Outline, best_layout
from parlab.planner.requests.layout_fields import layout_fields
from parlab.planner.requests.refusals import refusals
from parlab.planner.requests.request import PlanRequest
from parlab.planner.search.cluster_comparison import OtherCluster, Side, moved, side
from parlab.planner.search.layouts import Layout
from parlab.planner.search.short_runs import CALIBRATED_ERROR, UNSEEN_ERROR
from parlab.whole_numbers import whole_number
from runners.config import digest

MAX_LAYOUTS = 40
_LONGEST_CONFIG = 100_000
_CONFIG_TOKENS = 4096
"""Tokens of a sequence of the question about a config.json, which states only the longest."""
TIME_PARTS = {
    "compute_s": "Compute",
    "bubble_s": "Pipeline bubble",
    "tensor_s": "Tensor-parallel communication",
    "context_s": "Context-parallel communication",
    "expert_s": "Expert-parallel communication",
    "pipeline_s": "Pipeline communication",
    "data_s": "Data-parallel communication",
    "optimizer_s": "Optimizer",
    "other_s": "Fixed overhead",
}
MEMORY_PARTS = {
    "weights_bytes": "Weights",
    "gradients_bytes": "Gradients",
    "optimizer_bytes": "Optimizer state",
    "activations_bytes": "Activations",
    "logits_bytes": "Logits",
    "buffers_bytes": "Communication buffers",
    "overhead_bytes": "Context and libraries",
}


class Part(NamedTuple):
    """A row of a table of parts."""

    title: str
    value: float
    share: float


@require_GET
def plan(request: HttpRequest) -> HttpResponse:
    plan_query = read_question(request, is_strict=True)
    template = "pages/plan_answer.html" if is_partial(request) else "pages/plan.html"
    response = render(request, template, _context(request, plan_query))
    patch_vary_headers(response, ["HX-Request"])
    return response


@require_GET
def plan_model(request: HttpRequest) -> HttpResponse:
    """Open the question about a known model with its best layout, on the usual cluster or `?gpus=` of `?gpu=`."""
    entry = preset(request.GET.get("name", ""))
    if entry is None:
        return redirect(f"{reverse('plan')}?{urlencode({'model': request.GET.get('name', '')[:LONGEST]})}")
    count, gpu = request.GET.get("gpus", ""), device_named(request.GET.get("gpu", "")[:LONGEST])
    gpus = whole_number(count, 7) or 0
    return redirect(f"{reverse('plan')}?{_query_of_model(entry, gpus, gpu)}")


@require_POST
def plan_config(request: HttpRequest) -> HttpResponse:
    """Open the question about the model of a pasted config.json, with its best layout on the usual cluster."""
    text = request.POST.get("config", "")[:_LONGEST_CONFIG]
    try:
        config = json.loads(text)
        if not isinstance(config, dict):
            raise ValueError("the text is not a JSON object; paste the whole config.json")
        reading = read_config(config, _CONFIG_TOKENS)
        query = _query_of_model(Preset("", reading.model, "config.json"))
    except ValueError as error:
        messages.error(request, f"config.json was not read: {error}")
        return redirect("plan")
    return redirect(f"{reverse('plan')}?{query}&{urlencode({'huggingface': reading.summary[:LONGEST]})}")


@lru_cache(maxsize=64)
def _query_of_model(entry: Preset, gpus: int = 0, chosen: Gpu | None = None) -> str:
    fields = usual_question(entry, gpus)
    gpu = chosen or device(str(fields["gpu"]))
    fields["gpu"] = gpu.name
    # Any layout that splits the GPUs will do: the search replaces it.
    request = PlanRequest.model_validate(fields | {"tensor_parallel": 1, "pipeline_parallel": 1})
    best = best_layout(request, gpu)
    return query_of(fields | (layout_fields(best) if best else {}))


@require_GET
def plan_search(request: HttpRequest) -> HttpResponse:
    """Return the layouts and numbers of nodes of a question, which the page requests after the prediction."""
    plan_query = read_question(request)
    try:
        result = plan_query.sizing()
    except ValueError as error:
        return render(request, "pages/plan_search.html", {"error": str(error)})
    layouts = [*result.search.fitting, *result.search.too_large] if result else []
    risk = result.search.risky if result else None
    context = {
        "answer": result,
        "prediction": plan_query.outline and plan_query.outline.prediction,
        "layouts": [
            (
                layout,
                partition_text(layout.job),
                _own_warnings(layout, plan_query.outline),
                _query_with(request, layout_fields(layout.job)),
            )
            for layout in layouts[:MAX_LAYOUTS]
        ],
        "usual_error": UNSEEN_ERROR,
        "calibrated_error": CALIBRATED_ERROR,
        "risk": risk,
        "risk_text": layout_text(risk.layout) if risk else "",
        "risk_query": _query_with(request, layout_fields(risk.layout.job)) if risk else "",
        "left_out": max(0, len(layouts) - MAX_LAYOUTS),
        "address": request.GET.urlencode(),
        "asked": request.GET.items(),
        "devices": devices(),
        "question": plan_query.question,
    }
    return render(request, "pages/plan_search.html", context)


@require_GET
def plan_beside(request: HttpRequest) -> HttpResponse:
    """Return the best layouts of a question on its cluster and on another one, given by fields with `other_`."""
    plan_query = read_question(request)
    question, gpu = plan_query.question, plan_query.gpu
    if question is None or gpu is None:
        message = plan_query.refusals[0].message if plan_query.refusals else "The question has errors."
        return render(request, "pages/plan_beside.html", {"error": message})
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
        return render(request, "pages/plan_beside.html", {"error": " ".join(messages)})
    except ValueError as error:
        return render(request, "pages/plan_beside.html", {"error": str(error)})
    texts = [layout_text(part.layout) if part.layout else "" for part in sides]
    return render(request, "pages/plan_beside.html", {"sides": list(zip(sides, texts, strict=True))})


@lru_cache(maxsize=64)
def _side(question: PlanRequest, gpu: Gpu, calibration: Calibration | None) -> Side:
    return side(question, gpu, calibration)


def _query_with(request: HttpRequest, changes: Mapping[str, Any]) -> str:
    """Return the query of a question with other values of some fields."""
    fields: dict[str, Any] = dict(request.GET.items())
    return query_of(fields | dict(changes))


def _own_warnings(layout: Layout, first: Outline | None) -> list[str]:
    """Return the warnings of a layout that the page does not show for the whole question already."""
    shown = first.warnings if first else []
    return [note for note in warnings(layout.job, layout.prediction.cluster.device) if note not in shown]


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
        "drawn_from": digest(query)[:16],
        "sc21": sc21.compared(),
        "price": plan_query.price,
    }
    if answer is None:
        return context
    prediction = answer.prediction
    capacity = prediction.cluster.device.memory_bytes
    return context | {
        "prediction": prediction,
        "warning": plan_query.warning,
        "times": _parts(prediction.parts, TIME_PARTS, prediction.iteration_s),
        "memories": _parts(prediction.memory, MEMORY_PARTS, prediction.memory_bytes),
        "capacity": capacity,
        "low_bytes": prediction.distribution.quantile(0.1),
        "high_bytes": prediction.distribution.quantile(0.9),
        "is_close": 1 - CONFIDENT < prediction.fits_probability < CONFIDENT,
        "own": prediction.job,
    }


def _parts(parts: object, titles: dict[str, str], total: float) -> list[Part]:
    return [Part(title, getattr(parts, name), getattr(parts, name) / total) for name, title in titles.items()]


def layout_text(layout: Layout) -> str:
    """Return a one-line description of a layout."""
    job = layout.job
    parts = [f"TP {job.tensor_parallel}", f"PP {job.pipeline_parallel}", f"DP {job.data_parallel}"]
    parts += [f"CP {job.context_parallel}"] if job.context_parallel > 1 else []
    parts += [experts_text(job)] if job.model.num_experts > 1 else []
    parts.append(f"micro batch {job.micro_batch_size}")
    if job.pipeline_parallel > 1:
        parts.append(job.schedule + (f" in {job.virtual_stages} chunks" if job.virtual_stages > 1 else ""))
    parts.append(f"{partition_text(job)}, recompute {job.recompute}")
    parts += [f"in {job.recomputed_layers} layers per stage"] if job.recomputed_layers else []
    return ", ".join([*parts, "activations offloaded"] if job.offloads_activations else parts)


def experts_text(job: Job) -> str:
    """Return the expert parallel sizes of a layout."""
    shared = f" × ETP {job.expert_tensor_parallel}" if job.expert_tensor_parallel > 1 else ""
    return f"EP {job.expert_parallel}{shared}"


def partition_text(job: Job) -> str:
    """Return what the replicas of a layout partition: the ZeRO stage, or FSDP and HSDP."""
    if job.zero_stage < 3:
        return f"ZeRO {job.zero_stage}"
    name = f"HSDP over {job.shard_ranks}" if job.shard_ranks else "FSDP"
    return name if job.reshards_after_forward else f"{name}, weights kept"


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
            layout_text(size.layout) if size.layout else "",
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
def cost_json(request: HttpRequest) -> HttpResponse:
    return json_response(_drawing(request, predicted.cost_curve))


@require_GET
def cost_csv(request: HttpRequest) -> HttpResponse:
    return csv_response(_drawing(request, predicted.cost_curve).table, "cost-against-days.csv")
