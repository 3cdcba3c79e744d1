"""The sweep builder's first content for a plan: its layout, or the best layouts of its training."""

from __future__ import annotations

from django.http import HttpRequest

from parlab.pages.builder.draft import Draft
from parlab.planner.requests.launches import described_launch, launch_of
from runners.config import complete

from .plan_query import read_question

LAYOUTS = 6
"""Layouts that a sweep compares."""


def plan_draft(request: HttpRequest) -> Draft:
    """Return the draft of the question in the address; `plan=layouts` adds the best layouts as an axis.

    `plan=calibrate` has the layouts whose short runs calibrate the planner best, without that of the question.
    `plan=described` describes the training without changes, for a trainer that is not parlab's. A question with errors
    has the fields that open the builder without a plan.
    """
    query = read_question(request)
    if query.question is None or query.outline is None:
        return Draft.of_data({}, {})
    job = query.outline.prediction.job
    result = query.sizing() if request.GET.get("plan") in ("layouts", "calibrate") else None
    others = [layout.job for layout in result.search.fitting[:LAYOUTS]] if result else []
    if result and result.short_runs and request.GET.get("plan") == "calibrate":
        job, *others = [layout.job for layout in result.short_runs]
    per_node = query.question.gpus_per_node
    is_described = request.GET.get("plan") == "described"
    launch = described_launch(job, per_node) if is_described else launch_of(job, per_node, others)
    title = query.question.model or f"GPT of {job.model.parameters / 1e9:.3g}B parameters"
    planned = f"planned: {query.outline.prediction.iteration_s:.3g} s an iteration on {query.question.gpu}"
    changed = f" The run has otherwise: {'; '.join(launch.changed)}." if launch.changed else ""
    return Draft.of_data(
        complete(dict(launch.data)),
        launch.sweep,
        name=f"{title} on {job.world_size} GPUs",
        question=f"Does {title} run as {planned}?{changed}",
    )
