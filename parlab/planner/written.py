"""What the planner answers, as JSON: for the API and `manage.py plan`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from .answer import Answer
from .budget import Budget
from .layouts import Layout
from .prediction import Prediction
from .questions import Size


class _Part(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class WrittenTime(_Part):
    """Seconds of an iteration and its parts, on the slowest rank."""

    total_s: float
    compute_s: float
    bubble_s: float
    tensor_s: float
    pipeline_s: float
    data_s: float
    hidden_s: float
    """Messages beside the compute; not in the total."""
    optimizer_s: float
    other_s: float
    uncertainty: float
    """Relative error that half of such predictions stay below."""


class WrittenMemory(_Part):
    """Bytes on the fullest GPU and their parts."""

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


class WrittenWork(_Part):
    """FLOPs of an iteration, and what share of the peak they are."""

    parameters: float
    model_flops: float
    executed_flops: float
    short_flops: float
    """6 T P, or 8 T P with full recomputation."""
    tflops_per_gpu: float
    mfu: float | None
    hfu: float | None


class WrittenBudget(_Part):
    """A whole training."""

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
    schedule: str
    chunks: int
    zero: int
    micro_batch: int
    recompute: str
    iteration_s: float | None
    """None where it does not fit."""
    memory_bytes: float
    fits: bool
    reason: str
    """Why it is not the best one."""


class WrittenVariant(_Part):
    """The layout of the question with another recomputation or another schedule."""

    recompute: str
    schedule: str
    chunks: int
    micro_batches_in_flight: float
    activations_bytes: float
    memory_bytes: float
    fits: bool
    iteration_s: float


class WrittenSize(_Part):
    """The best layout on so many nodes; None where nothing fits."""

    nodes: int
    layout: WrittenLayout | None
    budget: WrittenBudget | None


class WrittenPlan(_Part):
    """Everything that the planner says to a question."""

    fits: bool
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
    recomputes: list[WrittenVariant]
    schedules: list[WrittenVariant]
    """Empty without a pipeline."""
    layouts: list[WrittenLayout]
    largest_on_one_node: float | None
    """Parameters of the largest GPT in GPT-3's proportions that trains on one node."""
    fewest_nodes: int | None
    nodes_against_days: list[WrittenSize]
    verdict: str | None


def written(found: Answer) -> WrittenPlan:
    """Write an answer down."""
    one = found.prediction
    work = found.work
    return WrittenPlan(
        fits=one.fits,
        reasons=one.reasons,
        warnings=found.warnings,
        basis=one.basis,
        iteration_s=one.iteration_s,
        samples_per_s=one.samples_per_s,
        tokens_per_s=one.tokens_per_s,
        time=WrittenTime(**vars(one.parts), total_s=one.iteration_s, uncertainty=one.uncertainty),
        memory=WrittenMemory(
            **{name: value for name, value in vars(one.memory).items() if name.endswith("_bytes")},
            total_bytes=one.memory_bytes,
            capacity_bytes=one.cluster.device.memory_bytes,
            micro_batches_in_flight=one.memory.in_flight,
            uncertainty=one.memory_uncertainty,
        ),
        work=WrittenWork(**vars(work), parameters=one.job.model.parameters),
        budget=_budget(found.budget),
        recomputes=[_variant(one) for one in found.recomputes],
        schedules=[_variant(one) for one in found.schedules],
        layouts=[_layout(layout) for layout in [*found.search.fitting, *found.search.too_large]],
        largest_on_one_node=found.largest.parameters if found.largest else None,
        fewest_nodes=found.fewest,
        nodes_against_days=[_size(size) for size in found.sizes],
        verdict=found.verdict.sentence if found.verdict else None,
    )


def _budget(budget: Budget) -> WrittenBudget:
    return WrittenBudget(**vars(budget))


def _variant(one: Prediction) -> WrittenVariant:
    return WrittenVariant(
        recompute=one.job.recompute,
        schedule=one.job.schedule,
        chunks=one.job.virtual_stages,
        micro_batches_in_flight=one.memory.in_flight,
        activations_bytes=one.memory.activations_bytes,
        memory_bytes=one.memory_bytes,
        fits=one.fits,
        iteration_s=one.iteration_s,
    )


def _layout(layout: Layout) -> WrittenLayout:
    job, prediction = layout.job, layout.prediction
    return WrittenLayout(
        tensor_parallel=job.tensor_parallel,
        pipeline_parallel=job.pipeline_parallel,
        data_parallel=job.data_parallel,
        schedule=job.schedule,
        chunks=job.virtual_stages,
        zero=job.zero_stage,
        micro_batch=job.micro_batch_size,
        recompute=job.recompute,
        iteration_s=prediction.iteration_s if prediction.fits else None,
        memory_bytes=prediction.memory_bytes,
        fits=prediction.fits,
        reason=layout.reason,
    )


def _size(size: Size) -> WrittenSize:
    return WrittenSize(
        nodes=size.nodes,
        layout=_layout(size.layout) if size.layout else None,
        budget=_budget(size.budget) if size.budget else None,
    )
