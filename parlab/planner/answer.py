"""Everything that the planner has to say to one question."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .budget import Budget, budget
from .calibration import Calibration
from .cluster import with_gpus
from .hardware import Gpu
from .job_flops import active_parameters, flops_of
from .layouts import Search, search
from .prediction import Prediction, predict_job
from .questions import Size, Verdict, fewest_nodes, largest_model, node_counts, trade_off, verdict
from .request import PlanRequest, warnings
from .workload import SCHEDULES, Job, Model, Recompute

_RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True)
class Work:
    """FLOPs of one iteration, and what share of the peak they are at the predicted speed."""

    model_flops: float
    executed_flops: float
    short_flops: float
    """6 T P, or 8 T P with full recomputation: the short form, without attention and logits."""
    mfu: float | None
    hfu: float | None
    tflops_per_gpu: float


@dataclass(frozen=True)
class Answer:
    """A prediction and what follows from it."""

    prediction: Prediction
    work: Work
    budget: Budget
    warnings: list[str]
    recomputes: list[Prediction]
    """The same layout with each mode of recomputation."""
    schedules: list[Prediction]
    """The same layout with each pipeline schedule that its layers allow; empty without a pipeline."""
    search: Search
    largest: Model | None
    """The largest GPT that trains on one node."""
    fewest: int | None
    """The fewest nodes on which the model of the question trains."""
    sizes: list[Size]
    verdict: Verdict | None


def answer(request: PlanRequest, gpu: Gpu, calibration: Calibration | None = None) -> Answer:
    """Answer a question on a device; raises ValueError for what no cluster can do."""
    job, cluster = request.job(), request.cluster(gpu)
    prediction = predict_job(job, cluster, calibration)
    tokens = request.tokens_billion * 1e9
    node = with_gpus(cluster, cluster.gpus_per_node)
    fewest = fewest_nodes(job, cluster, calibration)
    counts = node_counts(request.nodes, fewest) if fewest else [request.nodes]
    sizes = trade_off(job, cluster, counts, tokens, request.price, calibration)
    here = next(size for size in sizes if size.nodes == request.nodes)
    return Answer(
        prediction,
        work(prediction),
        budget(prediction, tokens, request.price),
        list(warnings(request, job, gpu)),
        [predict_job(replace(job, recompute=mode), cluster, calibration) for mode in _RECOMPUTES],
        [predict_job(one, cluster, calibration) for one in other_schedules(job)],
        search(job, cluster, calibration),
        largest_model(replace(job, zero_stage=0), node, calibration),
        fewest,
        sizes,
        verdict(here, request.wanted_days, sizes) if request.wanted_days else None,
    )


def other_schedules(job: Job) -> list[Job]:
    """The job in each schedule that its layers allow: interleaved in its own chunks, or 2; ZB-V in two."""
    if job.pipeline_parallel == 1:
        return []
    found = []
    for schedule in SCHEDULES:
        chunks = {"interleaved-1f1b": max(2, job.virtual_stages), "zb-v": 2}.get(schedule, 1)
        if job.pipeline_parallel * chunks <= job.model.num_layers:
            virtual = chunks if schedule == "interleaved-1f1b" else 1
            found.append(replace(job, schedule=schedule, virtual_stages=virtual))
    return found


def work(prediction: Prediction) -> Work:
    """Count FLOPs: exact (Narayanan et al. 2021, equation 3) where the model is a plain GPT, from its matrices else."""
    job, seconds = prediction.job, prediction.iteration_s
    needed, executed = flops_of(job)
    gpus = job.world_size
    peak = prediction.cluster.device.peak(job.precision)
    factor = 8 if job.recompute == "full" else 6
    rate = 1 / (gpus * seconds)
    return Work(
        needed,
        executed,
        factor * job.tokens * active_parameters(job.model),
        needed * rate / peak.flops_per_s if peak else None,
        executed * rate / peak.flops_per_s if peak else None,
        executed * rate / 1e12,
    )
