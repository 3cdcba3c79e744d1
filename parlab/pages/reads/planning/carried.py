"""The plan that the steps Predict, Search and Try hand on to each other in their addresses."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from django.http import QueryDict
from django.utils.http import urlencode
from pydantic import ValidationError

from parlab.lab.selectors.analysis.plans import plan_context
from parlab.planner.prediction.prediction import Prediction
from parlab.planner.requests.request import PlanRequest
from parlab.planner.schedule import BACKWARD_PER_FORWARD, split_times

_LONGEST = 4_000
_GIGABIT = 1e9 / 8


class CarriedPlan(NamedTuple):
    """A plan that another step was opened with."""

    title: str
    """`Llama 3 70B on 1,024 H100 SXM`"""
    query: str


def carried_plan(text: str) -> CarriedPlan | None:
    """Return the plan of the query of its address; None if it is none."""
    stated = QueryDict(text[:_LONGEST])
    fields = {name: stated[name] for name in PlanRequest.model_fields if stated.get(name, "").strip()}
    if not fields:
        return None
    try:
        question = PlanRequest.model_validate(fields, context=plan_context())
    except ValidationError:
        return None
    return CarriedPlan(f"{question.model or 'Own sizes'} on {question.gpus:,} {question.gpu}", urlencode(fields))


def simulated_query(prediction: Prediction) -> str:
    """Return the scenario of a plan's pipeline as the query of the page that simulates it; empty without stages.

    A pass takes what the prediction says of the slowest stage, messages within the stage included; a link has its share
    of the node's bandwidth.
    """
    job, cluster, parts = prediction.job, prediction.cluster, prediction.parts
    if job.pipeline_parallel == 1:
        return ""
    count = job.num_micro_batches
    both_s = (parts.compute_s + parts.tensor_s + parts.context_s + parts.expert_s) / count
    times = split_times(both_s, BACKWARD_PER_FORWARD.get(job.recompute, 2.0))
    is_inside = job.world_size <= cluster.domain
    shared_by = 1 if is_inside else min(cluster.gpus_per_node, job.tensor_parallel * job.replicas)
    link = cluster.inside if is_inside else cluster.between
    message = (job.wire_bytes or job.value_bytes) * job.rank_tokens * job.model.hidden_size / job.tensor_parallel
    own = {"gpipe": "gpipe", "zb-h1": "zb-h1"}.get(job.schedule, "1f1b")
    if job.virtual_stages > 1:
        own = f"interleaved-1f1b-{job.virtual_stages}"
    scenario: dict[str, Any] = {
        "stages": job.pipeline_parallel,
        "micro_batches": count,
        "forward_ms": _digits(1e3 * times.forward_s),
        "backward_ms": _digits(1e3 * times.backward_s),
        "weight_ms": _digits(1e3 * times.weight_s),
        "optimizer_ms": _digits(1e3 * parts.optimizer_s),
        "delay_ms": _digits(1e3 * link.latency_s),
        "bandwidth_gbps": _digits(link.bandwidth / shared_by / _GIGABIT),
        "message_mb": _digits(message / 1e6),
        "number_bytes": 2 if job.value_bytes <= 2 else 4,
        "schedules": list(dict.fromkeys(["gpipe", "1f1b", own, "zb-h1"])),
    }
    return urlencode(scenario, doseq=True)


def _digits(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ""
