"""What a row leaves out, contradicts itself in, or states without effect: notes of its prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parlab.planner.job.cluster import gbit_s
from parlab.planner.job.code_bases import code_base
from parlab.planner.job.workload import Job

from .row_checks import gpu_of
from .row_values import given, is_missing, number, section, whole

_NEAR = 1.05
"""Ratio up to which two figures of a data sheet are the same."""
_EXPERT_FIELDS = ("shared_experts", "dense_layers", "dense_ffn", "expert_groups", "groups_per_token")
_EXPERT_LAYOUT = ("etp", "expert_dispatcher", "expert_imbalance", "grouped_products", "overlap_experts")


def defaults(row: Mapping[str, Any], job: Job) -> Iterator[str]:
    """Generate the values of a layout and its cluster that a row leaves out, with those that count."""
    data, hardware = section(row, "parallel"), section(row, "hardware")
    for names, is_meant, text in _assumed(data, job):
        if is_meant and all(is_missing(data.get(name)) for name in names):
            yield f"{names[0]} is not given: {text}"
    if usual := [f"{name} {_yes(value)}" for name, value in _overlaps(job) if is_missing(data.get(name))]:
        yield f"as usual for the device, as they are not given: {', '.join(usual)}"
    if is_missing(hardware.get("count")):
        yield f"count is not given: {job.world_size} assumed"
    if is_missing(hardware.get("node")):
        yield "node is not given: 8 GPUs per node assumed"


def _assumed(data: Mapping[str, Any], job: Job) -> Iterator[tuple[tuple[str, ...], bool, str]]:
    """Generate fields of which one is stated, whether the layout has what they are about, and what is assumed."""
    has_stages, has_experts = job.pipeline_parallel > 1, job.expert_parallel > 1
    sizes = f"mbs {job.micro_batch_size} x dp {job.data_parallel} x gas {whole(data, 'gas', 1)}"
    yield ("tp",), True, f"{job.tensor_parallel} assumed"
    yield ("pp",), True, f"{job.pipeline_parallel} assumed"
    yield ("mbs",), True, f"{job.micro_batch_size} assumed"
    yield ("gbs",), True, f"{job.global_batch_size} assumed, {sizes}"
    yield ("recompute",), True, "none assumed"
    yield ("optimizer",), True, "Adam assumed"
    yield ("attention",), True, f"{'fused' if job.has_flash_attention else 'plain'} assumed"
    yield ("zero", "fsdp"), job.replicas > 1, f"{job.zero_stage} assumed"
    yield ("sequence_parallel",), job.tensor_parallel > 1, f"{_yes(job.sequence_parallel)} assumed"
    yield ("schedule", "vp", "virtual_pp"), has_stages and job.schedule == "1f1b", "1f1b assumed"
    yield ("cp_comm",), job.context_parallel > 1, f"{job.context_exchange} assumed"
    yield ("reshard_after_forward",), job.effective_zero == 3, f"{_yes(job.reshards_after_forward)} assumed"
    yield ("expert_dispatcher",), has_experts, f"{job.dispatcher} assumed"
    yield ("expert_imbalance",), has_experts, "even routing assumed"


def _overlaps(job: Job) -> Iterator[tuple[str, bool]]:
    """Generate what overlaps, as far as a layout has it, and whether kernels are recorded."""
    if job.replicas > 1:
        yield "overlap_gradients", job.overlaps_gradients
    if job.tensor_parallel > 1:
        yield "overlap_tensor", job.overlaps_tensor
    if job.expert_parallel > 1:
        yield "overlap_experts", job.overlaps_experts
    if job.chunks > 1 and job.pipeline_parallel > 1:
        yield "overlap_pipeline", job.overlaps_pipeline
    yield "cuda_graphs", job.has_cuda_graphs


def _yes(value: bool) -> str:
    return "true" if value else "false"


def contradictions(row: Mapping[str, Any], job: Job) -> Iterator[str]:
    """Generate the values of a row that others contradict, and which of them count."""
    data, hardware = section(row, "parallel"), section(row, "hardware")
    heads = job.model.num_heads
    if heads % job.tensor_parallel:
        yield f"tp {job.tensor_parallel} does not divide heads {heads}: treated as if it did"
    layers = job.model.num_layers
    if job.chunks > 1 and layers % (job.pipeline_parallel * job.chunks):
        yield f"vp {job.chunks} x pp {job.pipeline_parallel} does not divide layers {layers}: treated as if it did"
    share = job.micro_batch_size * job.data_parallel
    for name in ("gas", "microbatches"):
        count = whole(data, name, job.num_micro_batches)
        if not is_missing(data.get("gbs")) and count != job.num_micro_batches:
            yield (
                f"{name} {count} is not gbs {job.global_batch_size} / (mbs {job.micro_batch_size} x dp"
                f" {job.data_parallel} = {share}): gbs counts"
            )
    yield from _of_device(hardware)
    yield from _of_network(hardware)


def _of_device(hardware: Mapping[str, Any]) -> Iterator[str]:
    stated = hardware.get("peak_tflops")
    if is_missing(stated):
        return
    peak = number("peak_tflops", stated) * 1e12
    if not peak > 0:
        raise ValueError(f"peak_tflops {stated} is not positive; use the TFLOP/s of the data sheet, or leave it out")
    gpu = gpu_of(hardware)
    if not any(1 / _NEAR < peak / known < _NEAR for known in gpu.peak_flops.values()):
        yield f"peak_tflops {stated} is no peak of {gpu.name}: those of its data sheet count"


def _of_network(hardware: Mapping[str, Any]) -> Iterator[str]:
    text = hardware.get("inter_node")
    if is_missing(text) or not is_missing(hardware.get("gbps")):
        return
    if not isinstance(text, str):
        raise ValueError(f"inter_node {str(text)[:40]!r} is not a text; use a bandwidth with its unit, like 3200Gb")
    if gbit_s(text) is None:
        yield f"inter_node {text[:40]!r} states no bandwidth, like 3200Gb or 400GB/s: the usual one counts"


def without_effect(row: Mapping[str, Any], job: Job) -> Iterator[str]:
    """Generate the fields that a row states although the rest of it leaves them without effect."""
    model, parallel = section(row, "model"), section(row, "parallel")
    framework = given(parallel.get("framework"), "")
    if framework and code_base(framework) is None:
        yield f"framework {framework[:40]} is no known code base: it is treated as one that is not named"
    elif not is_missing(parallel.get("release")) and not job.code_base:
        yield f"release {str(parallel['release'])[:40]} has no effect without a framework"
    if not is_missing(parallel.get("dp_comm")) and "allreduce" not in str(parallel["dp_comm"]):
        yield f"dp_comm {str(parallel['dp_comm'])[:40]} is not known: an all-reduce assumed"
    is_mla = job.model.attention == "mla"
    needed = (
        ("experts", job.model.num_experts == 1, model, _EXPERT_FIELDS),
        ("experts", job.model.num_experts == 1, parallel, _EXPERT_LAYOUT),
        ("dense_layers", not job.model.dense_layers, model, ("dense_ffn",)),
        ("attention mla", not is_mla, model, ("q_lora_rank", "kv_lora_rank", "rope_head_dim")),
        ("window", job.model.sliding_window is None, model, ("windowed_share",)),
        ("cp", job.context_parallel == 1, parallel, ("cp_comm",)),
        ("pp", job.pipeline_parallel == 1, parallel, ("first_stage_layers", "last_stage_layers")),
    )
    for what, is_without, data, names in needed:
        if is_without and (idle := [name for name in names if data.get(name)]):
            yield f"without {what}, {', '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect"
