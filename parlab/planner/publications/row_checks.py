"""Combinations of a row's values that no training can have; each is refused with field, value and remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parlab.planner.job.workload import Job

from .row_values import whole


def refuse_impossible(job: Job, parallel: Mapping[str, Any], hardware: Mapping[str, Any]) -> None:
    """Raise ValueError with all impossible combinations of a row."""
    problems = [*_of_sizes(job, whole(hardware, "count", job.world_size)), *_of_batch(job, parallel), *_of_model(job)]
    if problems:
        raise ValueError("; ".join(problems))


def _of_sizes(job: Job, count: int) -> Iterator[str]:
    split = job.tensor_parallel * job.pipeline_parallel * job.context_parallel
    if count != job.world_size:
        yield (
            f"dp {job.data_parallel} x tp {job.tensor_parallel} x pp {job.pipeline_parallel} x cp"
            f" {job.context_parallel} = {job.world_size} is not count {count};"
            f" {_remedy_of_count(count, split)}"
        )
    ranks = job.tensor_parallel * job.replicas
    experts = job.expert_parallel * job.expert_tensor_parallel
    if ranks % experts:
        yield (
            f"ep {job.expert_parallel} x etp {job.expert_tensor_parallel} = {experts} does not divide the {ranks} GPUs"
            " of a stage; use a divisor"
        )


def _remedy_of_count(count: int, split: int) -> str:
    return f"use dp {count // split}" if count % split == 0 else "use sizes whose product is count"


def _of_batch(job: Job, parallel: Mapping[str, Any]) -> Iterator[str]:
    share = job.micro_batch_size * job.data_parallel
    if parallel.get("gbs") and job.global_batch_size % share:
        yield (
            f"gbs {job.global_batch_size} is not a multiple of mbs {job.micro_batch_size} x dp {job.data_parallel} ="
            f" {share}; use a multiple"
        )


def _of_model(job: Job) -> Iterator[str]:
    layers, sequence = job.model.num_layers, job.model.sequence_length
    if job.pipeline_parallel > layers:
        yield f"pp {job.pipeline_parallel} is more than layers {layers}; use {layers} stages or fewer"
    elif job.chunks > 1 and job.pipeline_parallel * job.chunks > layers + 3:
        # Interleaved schedules count the embedding, the loss and the prediction of further tokens as layers.
        yield f"vp {job.chunks} x pp {job.pipeline_parallel} is more than layers {layers}; use fewer chunks or stages"
    if sequence % job.context_parallel:
        yield f"cp {job.context_parallel} does not divide seq {sequence}; use a divisor"
    if job.model.sliding_window and not job.has_flash_attention:
        yield f"window {job.model.sliding_window} needs fused attention; use attention flash, or leave out window"
