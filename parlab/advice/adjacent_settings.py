"""Configurations that differ from a job in one decision, with the settings that make the change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from parlab.planner.job.workload import Job, Recompute, Schedule


class Neighbour(NamedTuple):
    """A change of one decision."""

    kind: str
    """A key of KINDS."""
    title: str
    job: Job
    settings: dict[str, Any]
    """Fields of a configuration (`train.micro_batch_size`) with their new values."""


class Kind(NamedTuple):
    """A kind of change, with what it costs and risks."""

    title: str
    cost: str
    risk: str


KINDS: dict[str, Kind] = {
    "micro_batch": Kind("Micro batch", "memory for activations grows with the micro batch", "out of memory"),
    "schedule": Kind("Pipeline schedule", "interleaved schedules send v times as many messages", "slow links"),
    "recompute": Kind("Recomputation", "memory for the activations that are stored instead", "out of memory"),
    "zero": Kind("ZeRO stage", "memory for states that are no longer partitioned", "out of memory"),
    "layout": Kind("Layout", "weights and activations are distributed otherwise", "out of memory, slower links"),
    "wire": Kind("16-bit wire", "messages between stages are rounded to 16 bits", "the loss may differ slightly"),
    "overlap": Kind(
        "Overlap of communication", "memory for messages on their way", "NCCL takes processors of the GPU from kernels"
    ),
    "rank": Kind("Slow rank or node", "a look at the machine, or another node", "none"),
    "loading": Kind("Data loading", "processor cores for data workers", "none"),
    "stages": Kind("Uneven stages", "another distribution of the layers", "memory of the stage that gets more layers"),
    "network": Kind("Slow network", "a look at the network, or other nodes", "none"),
    "batch": Kind("Larger batch", "memory for activations", "fewer updates per sample: adapt the learning rate"),
    "memory": Kind("Growing memory", "a look at what holds tensors or objects", "none"),
    "checkpoint": Kind("Checkpoint interval", "more steps are made again after a failure", "none"),
    "more_nodes": Kind("More nodes", "GPU hours", "slower links between more nodes, more failures"),
    "fewer_nodes": Kind("Fewer nodes", "a longer training", "out of memory, if states are partitioned over the nodes"),
    "messages": Kind("Message size", "memory for larger buffers", "less overlap with compute"),
    "trials": Kind("Shorter trials", "none", "memory that grows after the second step is not seen"),
    "search": Kind("Wider search", "more experiments", "experiments that run out of memory"),
    "host": Kind("Host-bound", "compile time, fixed shapes", "changes of the program"),
}
_RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")
_MICRO_BATCHES = (0.25, 0.5, 2, 4)


def neighbours(job: Job) -> Iterator[Neighbour]:
    """Yield the changes of a job that keep model, global batch and number of GPUs."""
    for candidate in (*_micro_batches(job), *_schedules(job), *_recomputes(job), *_zeros(job), *_layouts(job)):
        if _is_valid(candidate.job):
            yield candidate
    yield from _overlaps(job)
    if job.pipeline_parallel > 1 and job.precision == "fp32" and not job.wire_bytes:
        yield Neighbour(
            "wire", "Send activations in bf16", replace(job, wire_bytes=2.0), {"parallel.wire_precision": "bf16"}
        )


def _is_valid(job: Job) -> bool:
    per_round = job.micro_batch_size * job.data_parallel
    if job.global_batch_size % per_round or job.pipeline_parallel * job.chunks > job.model.num_layers:
        return False
    if job.schedule == "interleaved-1f1b" and job.num_micro_batches % job.pipeline_parallel:
        return False
    return job.model.num_heads % job.tensor_parallel == 0


def _micro_batches(job: Job) -> Iterator[Neighbour]:
    for factor in _MICRO_BATCHES:
        size = job.micro_batch_size * factor
        if size >= 1 and size == int(size):
            yield Neighbour(
                "micro_batch",
                f"Micro batch {int(size)} instead of {job.micro_batch_size}",
                replace(job, micro_batch_size=int(size)),
                {"train.micro_batch_size": int(size)},
            )


_SCHEDULES: tuple[tuple[Schedule, int], ...] = (("1f1b", 1), ("interleaved-1f1b", 2), ("zb-h1", 1), ("gpipe", 1))


def _schedules(job: Job) -> Iterator[Neighbour]:
    if job.pipeline_parallel == 1:
        return
    for schedule, chunks in _SCHEDULES:
        if (schedule, chunks) != (job.schedule, job.chunks):
            changed = replace(job, schedule=schedule, virtual_stages=chunks, warmup_slope=1)
            settings = {"parallel.schedule": schedule, "parallel.virtual_stages": chunks, "parallel.warmup_slope": 1}
            name = f"{schedule} with {chunks} chunks" if chunks > 1 else schedule
            yield Neighbour("schedule", f"Schedule {name} instead of {job.schedule}", changed, settings)


def _recomputes(job: Job) -> Iterator[Neighbour]:
    for mode in _RECOMPUTES:
        if mode != job.recompute:
            yield Neighbour(
                "recompute",
                f"Recomputation {mode} instead of {job.recompute}",
                replace(job, recompute=mode),
                {"train.recompute": mode},
            )


def _zeros(job: Job) -> Iterator[Neighbour]:
    if job.replicas == 1:
        return
    for stage in range(4):
        if stage != job.zero_stage:
            yield Neighbour(
                "zero",
                f"ZeRO stage {stage} instead of {job.zero_stage}",
                replace(job, zero_stage=stage),
                {"parallel.zero_stage": stage},
            )


_OVERLAPS = {
    "gradients": "the reduction of gradients with the backward pass",
    "tensor": "messages of tensor parallelism with matrix products",
    "experts": "the all-to-all of experts with matrix products",
    "pipeline": "messages between stages with computation",
}


def _overlaps(job: Job) -> Iterator[Neighbour]:
    """Let one kind of communication overlap that does not; parlab's own engines decide this themselves."""
    for name, what in _OVERLAPS.items():
        if not getattr(job, f"overlaps_{name}"):
            change: dict[str, Any] = {f"overlaps_{name}": True}
            settings = {f"parallel.overlap_{name}": True}
            yield Neighbour("overlap", f"Overlap {what}", replace(job, **change), settings)


_SIZES = ("tensor_parallel", "pipeline_parallel", "data_parallel")


def _layouts(job: Job) -> Iterator[Neighbour]:
    """Move a factor of 2 from one parallel size to another."""
    for giver in _SIZES:
        for taker in _SIZES:
            if giver == taker or getattr(job, giver) % 2:
                continue
            changed = replace(job, **{giver: getattr(job, giver) // 2, taker: 2 * getattr(job, taker)})
            sizes = (changed.tensor_parallel, changed.pipeline_parallel, changed.data_parallel)
            text = "tensor {} x pipeline {} x data {}".format(*sizes)
            settings = {f"parallel.{name}_size": size for name, size in zip(_SIZES, sizes, strict=True)}
            yield Neighbour("layout", f"Layout {text}", changed, settings)
