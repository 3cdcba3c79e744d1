"""Answer a planning question: prediction, work, budget, layouts and cluster sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import ValidationError

from parlab.planner.calibration.calibration import Calibration
from parlab.planner.calibration.coverage import warnings
from parlab.planner.job.cluster import with_gpus
from parlab.planner.job.hardware import Gpu
from parlab.planner.job.workload import SCHEDULES, Job, Model, Recompute
from parlab.planner.prediction.job_flops import flops_of
from parlab.planner.prediction.prediction import Prediction, predict_job
from parlab.planner.search.budget import Budget, budget
from parlab.planner.search.layouts import Layout, Search, search
from parlab.planner.search.questions import Size, Verdict, fewest_nodes, largest_model, node_counts, trade_off, verdict
from parlab.planner.search.short_runs import chosen

from .request import PlanRequest

_MOST_TRIED = 8
"""Numbers of nodes after the fewest that are searched for a layout which divides the global batch."""
_RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "operations", "full")


@dataclass(frozen=True)
class Work:
    """FLOPs of one iteration, and the share of the peak at the predicted speed (`mfu`, `hfu`: 0 to 1)."""

    model_flops: float
    executed_flops: float
    short_flops: float
    """The approximation 6 T P, or 8 T P with full recomputation, for T tokens and P parameters; it leaves out attention
    and logits."""
    mfu: float | None
    hfu: float | None
    tflops_per_gpu: float


@dataclass(frozen=True)
class Outline:
    """A prediction of the requested layout and the results that follow from it at once."""

    prediction: Prediction
    work: Work
    budget: Budget
    warnings: list[str]
    recomputes: list[Prediction]
    """The same layout with each recomputation mode."""
    schedules: list[Prediction]
    """The same layout with each pipeline schedule that has enough layers; empty without a pipeline."""


@dataclass(frozen=True)
class Sizing:
    """Other layouts of the training, and other numbers of nodes."""

    search: Search
    largest: Model | None
    """The largest GPT that trains on one node."""
    fewest: int | None
    """The fewest nodes in whose memory the requested model fits."""
    sizes: list[Size]
    verdict: Verdict | None

    @property
    def short_runs(self) -> list[Layout]:
        """The layouts of the search whose short runs calibrate the planner best."""
        return short_runs(self.search)

    @property
    def fewest_training(self) -> int | None:
        """The fewest of the compared nodes with a layout that also divides the global batch."""
        return next((size.nodes for size in self.sizes if size.budget), None)


def short_runs(found: Search) -> list[Layout]:
    """Return the layouts of a search whose short runs calibrate the planner best."""
    return [found.fitting[index] for index in chosen([layout.prediction for layout in found.fitting])]


@dataclass(frozen=True)
class Answer(Outline, Sizing):
    """The complete answer to a question."""


def answer(request: PlanRequest, gpu: Gpu, calibration: Calibration | None = None) -> Answer:
    """Answer a question for a device. Raises ValueError if no cluster can run the job."""
    first, second = outline(request, gpu, calibration), sizing(request, gpu, calibration)
    return Answer(**{**vars(first), **vars(second)})


def with_some_layout(fields: Mapping[str, Any]) -> PlanRequest:
    """Return the request of fields that state no layout, in any layout that divides its batch over its GPUs.

    A search replaces the layout. Raises ValidationError if no layout does.
    """
    refused: ValidationError | None = None
    for stages in (2**power for power in range(8)):
        for tensor in (1, 2, 4, 8):
            try:
                return PlanRequest.model_validate({
                    **fields, "tensor_parallel": tensor, "pipeline_parallel": stages, "micro_batch": 1,
                })  # fmt: skip
            except ValidationError as error:
                refused = refused or error
    assert refused is not None
    raise refused


def best_layout(request: PlanRequest, gpu: Gpu) -> Job | None:
    """Return the fastest layout of a training on the cluster of a request, not its own layout; None if none fits."""
    fitting = search(request.job(), request.cluster(gpu), None, request.overlap, 1).fitting
    return fitting[0].job if fitting else None


def outline(request: PlanRequest, gpu: Gpu, calibration: Calibration | None = None) -> Outline:
    """Predict the requested layout. Raises ValueError if the cluster cannot run it."""
    job, cluster = request.job(), request.cluster(gpu)
    prediction = predict_job(job, cluster, calibration)
    return Outline(
        prediction,
        work(prediction),
        budget(prediction, request.tokens_billion * 1e9, request.price),
        [*_unread(request), *warnings(job, gpu)],
        [predict_job(replace(job, recompute=mode), cluster, calibration) for mode in _RECOMPUTES],
        [predict_job(variant, cluster, calibration) for variant in other_schedules(job)],
    )


def _unread(request: PlanRequest) -> list[str]:
    """Return a warning if fields of a config.json were not read."""
    summary = request.huggingface or ""
    return [f"config.json of {summary}; they may change the model."] if "not read: " in summary else []


def sizing(request: PlanRequest, gpu: Gpu, calibration: Calibration | None = None) -> Sizing:
    """Search layouts and numbers of nodes. Raises ValueError if no cluster can run the job."""
    job, cluster = request.job(), request.cluster(gpu)
    node = with_gpus(cluster, cluster.gpus_per_node)
    fewest = fewest_nodes(job, cluster, calibration)
    counts = node_counts(request.nodes, fewest) if fewest else [request.nodes]
    budgets = partial(
        trade_off,
        job,
        cluster,
        tokens=request.tokens_billion * 1e9,
        price_per_gpu_hour=request.price,
        calibration=calibration,
        overlap=request.overlap,
    )
    sizes = _with_fewest(budgets(counts), fewest, lambda nodes: budgets([nodes])[0])
    requested_size = next(size for size in sizes if size.nodes == request.nodes)
    return Sizing(
        search(job, cluster, calibration, request.overlap),
        largest_model(replace(job, zero_stage=0), node, calibration),
        fewest,
        sizes,
        verdict(requested_size, request.wanted_days, sizes) if request.wanted_days else None,
    )


def _with_fewest(sizes: Sequence[Size], fewest: int | None, size_of: Callable[[int], Size]) -> list[Size]:
    """Add the first number of nodes after the fewest whose layouts divide the global batch, if those do not."""
    if fewest is None or any(size.nodes == fewest and size.budget for size in sizes):
        return list(sizes)
    # Sizes are in ascending order; above the first one that can train, nothing is smaller.
    end = next((size.nodes for size in sizes if size.budget), fewest + _MOST_TRIED + 1)
    for nodes in range(fewest + 1, min(end, fewest + _MOST_TRIED + 1)):
        if (size := size_of(nodes)).budget:
            return sorted([*(other for other in sizes if other.nodes != nodes), size], key=lambda other: other.nodes)
    return list(sizes)


def other_schedules(job: Job) -> list[Job]:
    """Return the job with each schedule for which it has enough layers.

    Interleaved 1F1B keeps the job's number of chunks, at least 2; ZB-V and DualPipe have 2, DualPipe an even number of
    stages. Without a pipeline the list is empty.
    """
    if job.pipeline_parallel == 1:
        return []
    variants = []
    for schedule in SCHEDULES:
        is_dual = schedule.startswith("dualpipe")
        if is_dual and job.pipeline_parallel % 2:
            continue
        chunks = {"interleaved-1f1b": max(2, job.virtual_stages), "zb-v": 2}.get(schedule, 2 if is_dual else 1)
        if job.pipeline_parallel * chunks <= job.model.num_layers:
            virtual = chunks if schedule == "interleaved-1f1b" else 1
            variants.append(replace(job, schedule=schedule, virtual_stages=virtual))
    return variants


def work(prediction: Prediction) -> Work:
    """Count the FLOPs of one iteration.

    A plain GPT uses the closed formula (Narayanan et al. 2021, equation 3); other models are counted matrix by matrix.
    """
    job, seconds = prediction.job, prediction.iteration_s
    needed, executed = flops_of(job)
    gpus = job.world_size
    peak = prediction.cluster.device.peak(job.precision)
    factor = 8 if job.recompute == "full" else 6
    rate = 1 / (gpus * seconds)
    return Work(
        needed,
        executed,
        factor * job.tokens * job.model.active_parameters,
        needed * rate / peak.flops_per_s if peak else None,
        executed * rate / peak.flops_per_s if peak else None,
        executed * rate / 1e12,
    )
