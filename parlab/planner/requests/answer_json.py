"""The planner's answer as JSON, for the API and `manage.py plan`."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from parlab.planner.calibration.coverage import warnings
from parlab.planner.job.prices import Price
from parlab.planner.prediction.prediction import Prediction
from parlab.planner.search.budget import Budget
from parlab.planner.search.layouts import Layout, Risk
from parlab.planner.search.questions import Size

from .answer import Answer


class _Part(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class WrittenTime(_Part):
    """Time of an iteration on the slowest rank and its parts (s)."""

    total_s: float
    compute_s: float
    bubble_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    pipeline_s: float
    data_s: float
    hidden_s: float
    """Communication that overlaps with computation; not included in the total."""
    optimizer_s: float
    other_s: float
    waiting_s: float
    """The part of `other_s` in which ranks wait for the slowest one."""
    uncertainty: float
    """Median relative error of such predictions."""
    spread: float
    """Relative error that 80 % of such predictions stay within."""


class WrittenMemory(_Part):
    """Memory on the GPU that needs most and its parts (bytes)."""

    total_bytes: float
    capacity_bytes: float
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float
    buffers_bytes: float
    overhead_bytes: float
    micro_batches_in_flight: float
    uncertainty: float
    low_bytes: float
    """Memory that one of ten such jobs needs less than."""
    high_bytes: float
    """Memory that one of ten such jobs needs more than."""


class WrittenWork(_Part):
    """FLOPs of an iteration and the share of the peak."""

    parameters: float
    model_flops: float
    executed_flops: float
    short_flops: float
    """The approximation 6 T P, or 8 T P with full recomputation."""
    tflops_per_gpu: float
    mfu: float | None
    hfu: float | None


class WrittenBudget(_Part):
    """Duration and cost of the whole training."""

    tokens: float
    iterations: float
    days: float
    days_low: float
    days_high: float
    gpu_hours: float
    cost: float | None


class WrittenLayout(_Part):
    """One layout of the job on the cluster."""

    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    context_parallel: int
    expert_parallel: int
    expert_tensor_parallel: int
    schedule: str
    chunks: int
    zero: int
    shard_ranks: int | None
    """Ranks over which ZeRO partitions (HSDP); None: all replicas."""
    reshard_after_forward: bool
    micro_batch: int
    recompute: str
    recomputed_layers: int | None
    """Layers of each stage that recompute; None: all."""
    offload_activations: bool
    iteration_s: float | None
    """None if it does not fit."""
    memory_bytes: float
    fits: bool
    fits_probability: float
    """Probability that it does not run out of memory."""
    reason: str
    """Why it is not the best layout; empty for the best."""
    warnings: list[str]
    """Sizes outside the range in which the planner was validated."""


class WrittenVariant(_Part):
    """The requested layout with another recomputation mode or another schedule."""

    recompute: str
    schedule: str
    chunks: int
    micro_batches_in_flight: float
    activations_bytes: float
    memory_bytes: float
    fits: bool
    fits_probability: float
    iteration_s: float


class WrittenRisk(_Part):
    """The fastest layout at any risk, if it is faster than the best of the layouts that surely fit."""

    layout: WrittenLayout
    lost_s: float
    """Expected time that failed launches cost."""
    gained_s: float | None
    """Time that each iteration gains if it fits; None if no layout surely fits."""
    iterations: float | None
    """Iterations after which the expected gain exceeds the expected loss."""


class WrittenSize(_Part):
    """The best layout on a number of nodes; None if no layout fits."""

    nodes: int
    layout: WrittenLayout | None
    budget: WrittenBudget | None


class WrittenPlan(_Part):
    """The complete answer of the planner."""

    fits: bool
    """More likely to fit than to run out of memory."""
    fits_probability: float
    assumed: list[str]
    """Fields that the question does not state, each with the value that counts."""
    reasons: list[str]
    warnings: list[str]
    basis: str
    iteration_s: float
    samples_per_s: float
    tokens_per_s: float
    time: WrittenTime
    memory: WrittenMemory
    work: WrittenWork
    budget: WrittenBudget
    price_source: str | None
    """Where the price comes from if the question states none."""
    recomputes: list[WrittenVariant]
    schedules: list[WrittenVariant]
    """Empty without a pipeline."""
    layouts: list[WrittenLayout]
    """Those that fit with a probability of at least 0.95, fastest first, then others."""
    risky: WrittenRisk | None
    short_runs: list[WrittenLayout]
    """Layouts whose short runs calibrate the planner best."""
    largest_on_one_node: float | None
    """Parameters of the largest GPT in GPT-3's proportions that trains on one node."""
    fewest_nodes: int | None
    nodes_against_days: list[WrittenSize]
    verdict: str | None


def written(answer: Answer, price: Price | None = None, assumed: Sequence[str] = ()) -> WrittenPlan:
    """Convert an answer to its JSON model.

    `price` is the one of the device, if the question states none; `assumed` the other fields that it does not state.
    """
    prediction, work = answer.prediction, answer.work
    return WrittenPlan(
        fits=prediction.fits,
        fits_probability=prediction.fits_probability,
        assumed=list(assumed),
        reasons=prediction.reasons,
        warnings=answer.warnings,
        basis=prediction.basis,
        iteration_s=prediction.iteration_s,
        samples_per_s=prediction.samples_per_s,
        tokens_per_s=prediction.tokens_per_s,
        time=WrittenTime(
            **vars(prediction.parts),
            total_s=prediction.iteration_s,
            uncertainty=prediction.uncertainty,
            spread=prediction.spread,
        ),
        memory=WrittenMemory(
            **{name: value for name, value in vars(prediction.memory).items() if name.endswith("_bytes")},
            total_bytes=prediction.memory_bytes,
            capacity_bytes=prediction.cluster.device.memory_bytes,
            micro_batches_in_flight=prediction.memory.in_flight,
            uncertainty=prediction.memory_uncertainty,
            low_bytes=prediction.distribution.quantile(0.1),
            high_bytes=prediction.distribution.quantile(0.9),
        ),
        work=WrittenWork(**vars(work), parameters=prediction.job.model.parameters),
        budget=_budget(answer.budget),
        price_source=price.source if price else None,
        recomputes=[_variant(variant) for variant in answer.recomputes],
        schedules=[_variant(variant) for variant in answer.schedules],
        layouts=[_layout(layout) for layout in [*answer.search.fitting, *answer.search.too_large]],
        short_runs=[_layout(layout) for layout in answer.short_runs],
        risky=_risk(answer.search.risky) if answer.search.risky else None,
        largest_on_one_node=answer.largest.parameters if answer.largest else None,
        fewest_nodes=answer.fewest,
        nodes_against_days=[_size(size) for size in answer.sizes],
        verdict=answer.verdict.sentence if answer.verdict else None,
    )


def _budget(budget: Budget) -> WrittenBudget:
    return WrittenBudget(**vars(budget))


def _variant(prediction: Prediction) -> WrittenVariant:
    return WrittenVariant(
        recompute=prediction.job.recompute,
        schedule=prediction.job.schedule,
        chunks=prediction.job.virtual_stages,
        micro_batches_in_flight=prediction.memory.in_flight,
        activations_bytes=prediction.memory.activations_bytes,
        memory_bytes=prediction.memory_bytes,
        fits=prediction.fits,
        fits_probability=prediction.fits_probability,
        iteration_s=prediction.iteration_s,
    )


def _risk(risk: Risk) -> WrittenRisk:
    return WrittenRisk(
        layout=_layout(risk.layout), lost_s=risk.lost_s, gained_s=risk.gained_s, iterations=risk.iterations
    )


def _layout(layout: Layout) -> WrittenLayout:
    job, prediction = layout.job, layout.prediction
    return WrittenLayout(
        tensor_parallel=job.tensor_parallel,
        pipeline_parallel=job.pipeline_parallel,
        data_parallel=job.data_parallel,
        context_parallel=job.context_parallel,
        expert_parallel=job.expert_parallel,
        expert_tensor_parallel=job.expert_tensor_parallel,
        schedule=job.schedule,
        chunks=job.virtual_stages,
        zero=job.zero_stage,
        shard_ranks=job.shard_ranks,
        reshard_after_forward=job.reshards_after_forward,
        micro_batch=job.micro_batch_size,
        recompute=job.recompute,
        recomputed_layers=job.recomputed_layers,
        offload_activations=job.offloads_activations,
        iteration_s=prediction.iteration_s if prediction.fits else None,
        memory_bytes=prediction.memory_bytes,
        fits=prediction.fits,
        fits_probability=prediction.fits_probability,
        reason=layout.reason,
        warnings=list(warnings(job, prediction.cluster.device)),
    )


def _size(size: Size) -> WrittenSize:
    return WrittenSize(
        nodes=size.nodes,
        layout=_layout(size.layout) if size.layout else None,
        budget=_budget(size.budget) if size.budget else None,
    )
