"""Impossible combinations of the fields of a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parlab.planner.requests.request_fields import RequestFields


class Faults(ValueError):
    """All impossible combinations of a request."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def faults(request: RequestFields) -> Iterator[str]:
    """Generate all impossible combinations of a request, each with field, value and remedy."""
    yield from _faults_of_model(request)
    yield from _faults_of_stages(request)
    yield from _faults_of_ranks(request)
    yield from _contradictions(request)


def _faults_of_model(request: RequestFields) -> Iterator[str]:
    if request.head_dim is None and not request.mla and request.hidden % request.heads:
        yield f"heads {request.heads} does not divide hidden {request.hidden}; use a divisor, or set head_dim"
    if request.kv_heads and request.heads % request.kv_heads:
        yield f"kv_heads {request.kv_heads} does not divide heads {request.heads}; use a divisor"
    if request.experts_per_token > request.experts:
        yield f"experts_per_token {request.experts_per_token} is more than experts {request.experts}; use at most that"
    if request.experts % request.expert_groups:
        yield f"expert_groups {request.expert_groups} does not divide experts {request.experts}; use a divisor"
    if (request.groups_per_token or 1) > request.expert_groups:
        yield (
            f"groups_per_token {request.groups_per_token} is more than expert_groups {request.expert_groups}; use at"
            " most that"
        )
    if request.window and request.attention == "plain":
        yield f"window {request.window} needs fused attention; use attention flash, or leave out window"
    if request.sequence % request.context_parallel:
        yield f"context_parallel {request.context_parallel} does not divide sequence {request.sequence}; use a divisor"
    if request.dense_layers > request.layers:
        yield f"dense_layers {request.dense_layers} is more than layers {request.layers}; use at most that"


def _faults_of_stages(request: RequestFields) -> Iterator[str]:
    if request.experts % request.expert_parallel:
        yield f"expert_parallel {request.expert_parallel} does not divide experts {request.experts}; use a divisor"
    if request.heads % request.tensor_parallel:
        yield f"tensor_parallel {request.tensor_parallel} does not divide heads {request.heads}; use a divisor"
    # Interleaved schedules count the embedding and the loss as layers.
    parts = request.layers + (2 if request.chunks > 1 else 0)
    if request.pipeline_parallel * request.chunks > parts:
        addition = " with embedding and loss" if request.chunks > 1 else ""
        yield (
            f"pipeline_parallel {request.pipeline_parallel} x chunks {request.chunks} is more than layers"
            f" {request.layers}{addition}; use fewer stages or chunks"
        )
    ends = (request.first_stage_layers or 1) + (request.last_stage_layers or 1)
    if request.pipeline_parallel > 1 and ends + request.pipeline_parallel - 2 > request.layers:
        yield (
            f"first_stage_layers {request.first_stage_layers} and last_stage_layers {request.last_stage_layers} leave"
            f" too few of the {request.layers} layers for {request.pipeline_parallel} stages; use fewer"
        )
    if request.schedule.startswith("dualpipe") and request.pipeline_parallel % 2:
        yield f"pipeline_parallel {request.pipeline_parallel} is odd; use an even number with {request.schedule}"


def _contradictions(request: RequestFields) -> Iterator[str]:
    """Generate fields that others leave without effect, or that they contradict."""
    if request.chunks > 1 and request.schedule != "interleaved-1f1b":
        yield f"chunks {request.chunks} contradicts schedule {request.schedule}; use interleaved-1f1b, or 1 chunk"
    if request.recomputed_layers and request.recompute == "none":
        yield f"recomputed_layers {request.recomputed_layers} contradicts recompute none; leave one out"
    if request.recomputed_layers and request.recomputed_layers > request.layers:
        yield f"recomputed_layers {request.recomputed_layers} is more than layers {request.layers}; use at most that"
    if request.offload == "all" and request.zero != 3:
        yield f"offload all needs zero 3, not {request.zero}; use zero 3, or offload optimizer"
    elif request.offload != "none" and request.zero == 0:
        yield f"offload {request.offload} needs zero 1, 2 or 3; use one of these, or offload none"
    ranks = request.replicas * request.context_parallel
    if ranks % (request.shard_ranks or 1):
        yield f"shard_ranks {request.shard_ranks} does not divide the {ranks} ranks of the same weights; use a divisor"
    if request.nvlink_domain and request.nvlink_domain < request.gpus_per_node:
        yield (
            f"nvlink_domain {request.nvlink_domain} is less than gpus_per_node {request.gpus_per_node}; use at least"
            " that, or smaller nodes"
        )
    if request.release and not request.code_base:
        yield f"release {request.release} has no effect without code_base; state the trainer"


def _faults_of_ranks(request: RequestFields) -> Iterator[str]:
    share = request.tensor_parallel * request.pipeline_parallel * request.context_parallel
    context = f" x context_parallel {request.context_parallel}" if request.context_parallel > 1 else ""
    if request.gpus % share:
        yield (
            f"nodes {request.nodes} x {request.gpus_per_node} GPUs = {request.gpus} cannot be split into"
            f" tensor_parallel {request.tensor_parallel} x pipeline_parallel {request.pipeline_parallel}{context} ="
            f" {share}; use a divisor"
        )
    ranks = request.tensor_parallel * request.context_parallel * request.replicas
    experts = request.expert_parallel * request.expert_tensor_parallel
    if ranks % experts:
        yield (
            f"expert_parallel {request.expert_parallel} x expert_tensor_parallel {request.expert_tensor_parallel} ="
            f" {experts} does not divide the {ranks} GPUs of a stage; use a divisor"
        )
    if request.global_batch % (request.micro_batch * request.replicas):
        yield (
            f"global_batch {request.global_batch} is not a multiple of micro_batch {request.micro_batch} x"
            f" {request.replicas} replicas = {request.micro_batch * request.replicas}; use a multiple"
        )
