"""A layout of a plan as fields of a RunConfig, so that a run can test it, and what the engines cannot train of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parlab.planner.job.descriptions import description_of, plain_model
from parlab.planner.job.workload import Job, Model
from runners.config.engines import MEGATRON, ZERO

ITERATIONS, WARMUP = 20, 5
"""Length of a run that tests a plan."""
_PRECISIONS = {"fp8": "bf16", "mxfp8": "bf16", "nvfp4": "bf16"}
_RECOMPUTES = {"operations": "full"}
_SCHEDULES = {"zb-h2": "zb-h1", "zb-v": "zb-h1", "dualpipe": "zb-h1", "dualpipe-v": "zb-h1"}
_LAYOUT = (
    "parallel.tensor_parallel_size",
    "parallel.pipeline_parallel_size",
    "parallel.data_parallel_size",
    "parallel.sequence_parallel",
    "parallel.schedule",
    "parallel.virtual_stages",
    "train.micro_batch_size",
    "train.recompute",
)
"""Fields in which the layouts of a sweep differ."""


@dataclass(frozen=True)
class Launch:
    """Sections of a RunConfig and the axes of a sweep."""

    data: Mapping[str, Mapping[str, Any]]
    sweep: Mapping[str, Sequence[Any]]
    changed: Sequence[str]
    """What the run has otherwise than the plan, each with its reason."""


def launch_of(job: Job, gpus_per_node: int, others: Sequence[Job] = ()) -> Launch:
    """Return a layout as a RunConfig, with other layouts of the same training as an axis whose fields change together.

    Layouts with context parallelism, and those of another engine, are left out of the axis.
    """
    data = _sections(job, gpus_per_node)
    engine = data["parallel"]["engine"]
    layouts = [_sections(other, gpus_per_node) for other in others if other.context_parallel == 1]
    points = [_point(data), *(_point(layout) for layout in layouts if layout["parallel"]["engine"] == engine)]
    distinct = [list(point) for point in dict.fromkeys(map(tuple, points))]
    sweep = {", ".join(_LAYOUT): distinct} if len(distinct) > 1 else {}
    return Launch(data, sweep, list(_changes(job)))


def described_launch(job: Job, gpus_per_node: int) -> Launch:
    """Return a layout as a RunConfig of another trainer, which can have all that the planner describes."""
    return Launch(description_of(job, gpus_per_node, ITERATIONS, WARMUP), {}, [])


def _sections(job: Job, gpus_per_node: int) -> dict[str, dict[str, Any]]:
    is_partitioned = _is_partitioned(job)
    schedule = _SCHEDULES.get(job.schedule, job.schedule)
    data: dict[str, dict[str, Any]] = {
        "model": plain_model(job.model),
        "train": {
            "global_batch_size": job.global_batch_size,
            "micro_batch_size": job.micro_batch_size,
            "iterations": ITERATIONS,
            "warmup_steps": WARMUP,
            "precision": _PRECISIONS.get(job.precision, job.precision),
            "recompute": "none" if is_partitioned else _RECOMPUTES.get(job.recompute, job.recompute),
        },
        "parallel": {
            "engine": ZERO.name if is_partitioned else MEGATRON.name,
            "tensor_parallel_size": job.tensor_parallel,
            "pipeline_parallel_size": job.pipeline_parallel,
            "data_parallel_size": job.data_parallel,
            "sequence_parallel": job.sequence_parallel and job.tensor_parallel > 1,
            "schedule": schedule if job.pipeline_parallel > 1 else "1f1b",
            "virtual_stages": job.chunks,
            "zero_stage": job.zero_stage if is_partitioned else 0,
            "zero_offload": job.zero_offload if is_partitioned else "none",
        },
    }
    gpus = job.tensor_parallel * job.pipeline_parallel * job.data_parallel
    if gpus > gpus_per_node:
        data["cluster"] = {"nodes": -(-gpus // gpus_per_node), "gpus_per_node": gpus_per_node}
    return data


def _is_partitioned(job: Job) -> bool:
    """Return whether engine zero trains the layout."""
    return job.effective_zero > 0 and job.tensor_parallel == job.pipeline_parallel == 1


def _point(data: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    return [data[section][name] for section, _, name in (path.partition(".") for path in _LAYOUT)]


def _changes(job: Job) -> Iterator[str]:
    """Generate what the engines do not train, and what the run has instead."""
    yield from _model_changes(job.model)
    if job.context_parallel > 1:
        yield f"context_parallel {job.context_parallel}: no engine splits sequences, so the run has fewer GPUs"
    if job.expert_parallel > 1:
        yield f"expert_parallel {job.expert_parallel}: no engine has experts"
    for name, value, used in (
        ("precision", job.precision, _PRECISIONS.get(job.precision)),
        ("schedule", job.schedule, _SCHEDULES.get(job.schedule) if job.pipeline_parallel > 1 else None),
        ("recompute", job.recompute, _RECOMPUTES.get(job.recompute)),
    ):
        if used:
            yield f"{name} {value}: {used} instead"
    if _is_partitioned(job) and job.recompute != "none":
        yield f"recompute {job.recompute}: engine zero has none"
    if job.recomputed_layers and job.recompute == "full":
        yield f"recomputed_layers {job.recomputed_layers}: all layers recompute"
    if job.effective_zero and not _is_partitioned(job):
        yield f"zero {job.zero_stage}: engine megatron keeps all states on each replica"
    if job.first_stage_layers or job.last_stage_layers:
        yield "first_stage_layers, last_stage_layers: stages are as even as possible"
    if job.offloads_activations:
        yield "offload_activations: no engine moves activations"


def _model_changes(model: Model) -> Iterator[str]:
    """Generate the parts of a model that parlab's GPT and BERT do not have."""
    if model.num_kv_heads not in (None, model.num_heads) or model.attention == "mla":
        yield "kv_heads, mla: each head has keys and values of its own"
    if model.is_gated or model.ffn_size != 4 * model.hidden_size:
        yield "mlp, ffn: two matrices, 4 times the hidden size wide"
    if model.num_experts > 1:
        yield f"experts {model.num_experts}: one MLP per layer"
    if model.head_dim and model.head_dim * model.num_heads != model.hidden_size:
        yield f"head_dim {model.head_dim}: hidden / heads"
    if model.sliding_window:
        yield f"window {model.sliding_window}: a token sees all earlier ones"
