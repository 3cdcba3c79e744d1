"""Combinations of a row's values that no training can have; each is refused with field, value and remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parlab.planner.job.cluster import device
from parlab.planner.job.hardware import Gpu
from parlab.planner.job.workload import Job
from parlab.planner.prediction.memory import stage_layers

from .row_values import given, is_missing, number, section, stated, whole


def refuse_impossible(job: Job, row: Mapping[str, Any]) -> None:
    """Raise ValueError with all impossible combinations of a row."""
    model, parallel, hardware = (section(row, name) for name in ("model", "parallel", "hardware"))
    problems = [
        *_of_sizes(job, whole(hardware, "count", job.world_size)),
        *_of_shards(job),
        *_of_offload(job),
        *_of_batch(job, parallel),
        *_of_model(job, model),
        *_of_stages(job, parallel),
        *_of_cluster(hardware),
    ]
    if problems:
        raise ValueError("; ".join(problems))


def gpu_of(hardware: Mapping[str, Any]) -> Gpu:
    """Return the device of a row. Raises ValueError if it is missing or unknown."""
    name = str(given(hardware.get("gpu"), ""))
    if not name:
        raise ValueError("hardware.gpu is missing; give a device name, for example A100-80GB")
    for begin, full in (("V100-32", "V100 32GB"), ("A100-80", "A100 80GB")):
        name = full if begin in name else name
    return device(name.replace("-", " ").split("(")[0])


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
    if not is_missing(parallel.get("gbs")) and job.global_batch_size % share:
        yield (
            f"gbs {job.global_batch_size} is not a multiple of mbs {job.micro_batch_size} x dp {job.data_parallel} ="
            f" {share}; use a multiple"
        )


def _of_shards(job: Job) -> Iterator[str]:
    if job.shard_ranks is None:
        return
    if job.replicas % job.shard_ranks:
        yield f"fsdp {job.shard_ranks} does not divide dp x cp = {job.replicas}; use a divisor"
    if job.zero_stage != 3:
        yield f"zero {job.zero_stage} contradicts fsdp {job.shard_ranks}, which is zero 3; leave one out"


def _of_offload(job: Job) -> Iterator[str]:
    if job.zero_offload == "all" and job.zero_stage != 3:
        yield f"offload all needs zero 3, not {job.zero_stage}; use zero 3, or offload optimizer"
    elif job.zero_offload != "none" and job.zero_stage == 0:
        yield "offload optimizer needs zero 1, 2 or 3; use one of these, or leave out offload"


def _of_model(job: Job, data: Mapping[str, Any]) -> Iterator[str]:
    model = job.model
    heads, hidden, sequence = model.num_heads, model.hidden_size, model.sequence_length
    if hidden % heads and not is_missing(data.get("heads")) and model.head_dim is None:
        yield f"heads {heads} does not divide hidden {hidden}; use a divisor, or set head_dim"
    if heads % (model.num_kv_heads or heads):
        yield f"kv_heads {model.num_kv_heads} does not divide heads {heads}; use a divisor"
    if sequence % job.context_parallel:
        yield f"cp {job.context_parallel} does not divide seq {sequence}; use a divisor"
    if model.sliding_window and not job.has_flash_attention:
        yield f"window {model.sliding_window} needs fused attention; use attention flash, or leave out window"


def _of_stages(job: Job, parallel: Mapping[str, Any]) -> Iterator[str]:
    layers, stages = job.model.num_layers, job.pipeline_parallel
    chunks = [whole(parallel, name, 1) for name in ("vp", "virtual_pp") if not is_missing(parallel.get(name))]
    if job.chunks > 1 and stages * job.chunks > layers + 3:
        # Interleaved schedules count the embedding, the loss and the prediction of further tokens as layers.
        yield f"vp {job.chunks} x pp {stages} is more than layers {layers}; use fewer chunks or stages"
    if len(set(chunks)) > 1:
        yield f"vp {chunks[0]} and virtual_pp {chunks[1]} contradict each other; leave one out"
    elif chunks and chunks[0] > 1 and job.schedule != "interleaved-1f1b" and not _has_two_chunks(job, chunks[0]):
        yield f"vp {chunks[0]} contradicts schedule {job.schedule}; use schedule interleaved, or leave out vp"
    if job.schedule.startswith("dualpipe") and stages % 2:
        yield f"pp {stages} is odd; use an even number with {job.schedule}"
    if job.recomputed_layers is None:
        return
    most = max(stage_layers(job, stage) for stage in {0, min(1, stages - 1), stages - 1})
    if job.recompute == "none":
        yield f"recomputed_layers {job.recomputed_layers} contradicts recompute none; leave it out, or state recompute"
    elif job.recomputed_layers > most:
        yield f"recomputed_layers {job.recomputed_layers} is more than the {most} layers of a stage; use at most that"


def _has_two_chunks(job: Job, chunks: int) -> bool:
    return chunks == 2 and job.schedule in ("zb-v", "dualpipe", "dualpipe-v")


def _of_cluster(hardware: Mapping[str, Any]) -> Iterator[str]:
    try:
        gpu_of(hardware)
    except ValueError as error:
        yield str(error)
    node, domain = whole(hardware, "node", 8), stated(hardware, "nvlink_domain")
    if domain and domain < node:
        yield f"nvlink_domain {domain} is less than node {node}; use at least the GPUs of a node"
    delay, rate = number("delay_ms", given(hardware.get("delay_ms"), 0)), hardware.get("gbps")
    if not 0 <= delay <= 60_000:
        yield f"delay_ms {delay:g} is out of range; use 0 to 60000"
    if not is_missing(rate) and not 0 < number("gbps", rate) <= 1e6:
        yield f"gbps {rate} is out of range; use more than 0 and at most 1e6"
