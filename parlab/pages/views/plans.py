"""The planner's page: typed in, predicted, searched, with what was published beside what is predicted."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_GET
from pydantic import ValidationError

from parlab.charts import predicted, theme
from parlab.charts.predicted import SizePoint
from parlab.charts.theme import Drawing
from parlab.lab import selectors
from parlab.lab.selectors import CalibrationGroup
from parlab.planner import sc21
from parlab.planner.answer import Answer, answer
from parlab.planner.layouts import Layout
from parlab.planner.request import PlanRequest, Refusal, refusals
from runners.config import digest

from .figures import csv_response, json_response
from .partial import is_partial

_LONGEST = 200
MAX_LAYOUTS = 40
TIME_PARTS = {
    "compute_s": "Compute",
    "bubble_s": "Pipeline bubble",
    "tensor_s": "Tensor parallel messages",
    "pipeline_s": "Messages between stages",
    "data_s": "Data parallel messages",
    "optimizer_s": "Optimizer",
    "other_s": "Fixed cost",
}
MEMORY_PARTS = {
    "weights_bytes": "Weights",
    "gradients_bytes": "Gradients",
    "optimizer_bytes": "Optimizer state",
    "activations_bytes": "Activations",
    "logits_bytes": "Logits",
    "buffers_bytes": "Buffers of messages",
    "overhead_bytes": "Context and libraries",
}


class Part(NamedTuple):
    """A line of a table of parts."""

    title: str
    value: float
    share: float


class Asked(NamedTuple):
    """A question as it came with an address."""

    fields: dict[str, str]
    question: PlanRequest | None
    answer: Answer | None
    refused: list[Refusal]
    doubt: str = ""
    """Why the calibration that was chosen may not suit the device."""


def read_question(request: HttpRequest) -> Asked:
    """Read and answer the question of an address; without any field it is the default prediction."""
    given: dict[str, Any] = {
        name: request.GET[name][:_LONGEST] for name in PlanRequest.model_fields if request.GET.get(name, "").strip()
    }
    texts = {name: _text(given.get(name, field.default)) for name, field in PlanRequest.model_fields.items()}
    texts["calibration"] = request.GET.get("calibration", "")[:_LONGEST]
    try:
        question = PlanRequest.model_validate(given)
    except ValidationError as error:
        return Asked(texts, None, None, refusals(error))
    gpu = selectors.device_named(question.gpu)
    if gpu is None:
        message = f"gpu {question.gpu} is not in the catalogue; choose one of the list, or add it in the admin"
        return Asked(texts, question, None, [Refusal("gpu", question.gpu, message)])
    try:
        group = _group(texts["calibration"])
        known = selectors.calibration_of(group, gpu) if group else None
        return Asked(texts, question, answer(question, gpu, known), [], _doubt(group, gpu.name))
    except ValueError as error:
        return Asked(texts, question, None, [Refusal(str(error).split(" ")[0], "", str(error))])


def _group(key: str) -> CalibrationGroup | None:
    if not key:
        return None
    for group in selectors.calibration_pool().groups:
        if group.key == key:
            return group
    raise ValueError(f"calibration {key!r} is not known any more; choose another or none")


def _doubt(group: CalibrationGroup | None, device: str) -> str:
    if group is None or group.device == device:
        return ""
    if not group.device:
        return f"The files of the calibration name no GPU: their runs are taken as run on {device}."
    return f"Calibrated on {group.device}, planned for {device}: what one reaches says little of the other."


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else ""
    return f"{value:g}" if isinstance(value, float) else str(value)


@require_GET
def plan(request: HttpRequest) -> HttpResponse:
    asked = read_question(request)
    template = "pages/plan_answer.html" if is_partial(request) else "pages/plan.html"
    response = render(request, template, _context(request, asked))
    patch_vary_headers(response, ["HX-Request"])
    return response


def _context(request: HttpRequest, asked: Asked) -> dict[str, Any]:
    found = asked.answer
    query = request.GET.urlencode()
    pool = selectors.calibration_pool()
    context: dict[str, Any] = {
        "section": "plan",
        "fields": asked.fields,
        "devices": selectors.devices(),
        "groups": pool.groups,
        "sources": pool.sources,
        "refusals": asked.refused,
        "answer": found,
        "address": query,
        "drawn_from": digest(query)[:16],
        "sc21": sc21.compared(),
    }
    if found is None or asked.question is None:
        return context
    prediction = found.prediction
    capacity = prediction.cluster.device.memory_bytes
    spare = capacity - prediction.memory_bytes
    layouts = [*found.search.fitting, *found.search.too_large]
    return context | {
        "prediction": prediction,
        "question": asked.question,
        "doubt": asked.doubt,
        "times": _parts(prediction.parts, TIME_PARTS, prediction.iteration_s),
        "memories": _parts(prediction.memory, MEMORY_PARTS, prediction.memory_bytes),
        "capacity": capacity,
        "spare": spare,
        "is_close": abs(spare) < prediction.memory_bytes * prediction.memory_uncertainty,
        "layouts": layouts[:MAX_LAYOUTS],
        "left_out": max(0, len(layouts) - MAX_LAYOUTS),
        "own": prediction.job,
    }


def _parts(parts: object, titles: dict[str, str], total: float) -> list[Part]:
    return [Part(title, getattr(parts, name), getattr(parts, name) / total) for name, title in titles.items()]


def layout_words(layout: Layout) -> str:
    """Describe a layout in one line."""
    job = layout.job
    words = [f"TP {job.tensor_parallel}", f"PP {job.pipeline_parallel}", f"DP {job.data_parallel}"]
    words.append(f"micro batch {job.micro_batch_size}")
    if job.pipeline_parallel > 1:
        words.append(job.schedule + (f" in {job.virtual_stages} chunks" if job.virtual_stages > 1 else ""))
    return ", ".join([*words, f"ZeRO {job.zero_stage}", f"recompute {job.recompute}"])


def _drawing(request: HttpRequest) -> Drawing:
    asked = read_question(request)
    if asked.answer is None or asked.question is None:
        return theme.nothing(asked.refused[0].message if asked.refused else "Nothing to draw.")
    per_node = asked.question.gpus_per_node
    points = [
        SizePoint(
            size.nodes,
            size.nodes * per_node,
            size.budget.days if size.budget else None,
            size.budget.days_low if size.budget else None,
            size.budget.days_high if size.budget else None,
            layout_words(size.layout) if size.layout else "",
            size.budget.gpu_hours if size.budget else None,
            size.budget.cost if size.budget else None,
        )
        for size in asked.answer.sizes
    ]
    return predicted.trade_off(points, asked.question.wanted_days)


@require_GET
def trade_off_json(request: HttpRequest) -> HttpResponse:
    return json_response(_drawing(request))


@require_GET
def trade_off_csv(request: HttpRequest) -> HttpResponse:
    return csv_response(_drawing(request).table, "nodes-against-days.csv")
