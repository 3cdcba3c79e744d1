"""Rules of models and layouts that only configurations of other trainers describe."""

from __future__ import annotations

from collections.abc import Iterator

from .fields import RunFields
from .problems import Problem, divisors


def feature_problems(config: RunFields) -> Iterator[Problem]:
    """Check experts, heads, stages and ranks that must fit each other."""
    yield from _model_problems(config)
    yield from _stage_problems(config)
    yield from _rank_problems(config)


def _model_problems(config: RunFields) -> Iterator[Problem]:
    model = config.model
    heads, kv_heads, experts = model.num_attention_heads, model.num_kv_heads, model.num_experts
    if kv_heads and heads % kv_heads:
        message = f"num_kv_heads {kv_heads} does not divide num_attention_heads {heads}; use {divisors(heads)}"
        yield Problem("model.num_kv_heads", kv_heads, message)
    if model.experts_per_token > experts:
        message = f"experts_per_token {model.experts_per_token} is more than num_experts {experts}; use 1 to {experts}"
        yield Problem("model.experts_per_token", model.experts_per_token, message)
    groups, chosen = model.expert_groups, model.groups_per_token
    if experts % groups:
        message = f"expert_groups {groups} does not divide num_experts {experts}; use {divisors(experts)}"
        yield Problem("model.expert_groups", groups, message)
    if chosen and chosen > groups:
        message = f"groups_per_token {chosen} is more than expert_groups {groups}; use 1 to {groups}"
        yield Problem("model.groups_per_token", chosen, message)
    if model.dense_layers > model.num_layers:
        layers = model.num_layers
        message = f"dense_layers {model.dense_layers} is more than num_layers {layers}; use 0 to {layers}"
        yield Problem("model.dense_layers", model.dense_layers, message)


def _stage_problems(config: RunFields) -> Iterator[Problem]:
    parallel, layers = config.parallel, config.model.num_layers
    stages, first, last = parallel.pipeline_parallel_size, parallel.first_stage_layers, parallel.last_stage_layers
    if (first or last) and stages > 1 and (first or 1) + (last or 1) + stages - 2 > layers:
        message = (
            f"first_stage_layers {first} and last_stage_layers {last} leave too few of {layers} layers for {stages}"
            " stages; use fewer"
        )
        yield Problem("parallel.first_stage_layers" if first else "parallel.last_stage_layers", first or last, message)
    if parallel.schedule.startswith("dualpipe") and stages % 2:
        message = f"pipeline_parallel_size {stages} is odd; use an even number with schedule {parallel.schedule}"
        yield Problem("parallel.pipeline_parallel_size", stages, message)


def _rank_problems(config: RunFields) -> Iterator[Problem]:
    parallel, experts = config.parallel, config.model.num_experts
    shared = parallel.expert_parallel_size
    if experts % shared:
        message = f"expert_parallel_size {shared} does not divide num_experts {experts}; use {divisors(experts)}"
        yield Problem("parallel.expert_parallel_size", shared, message)
    ranks = parallel.tensor_parallel_size * parallel.context_parallel_size * parallel.data_parallel_size
    if ranks % (shared * parallel.expert_tensor_parallel_size):
        message = (
            f"expert_parallel_size {shared} x expert_tensor_parallel_size {parallel.expert_tensor_parallel_size} does"
            f" not divide the {ranks} ranks of a stage; use divisors"
        )
        yield Problem("parallel.expert_tensor_parallel_size", parallel.expert_tensor_parallel_size, message)
    replicas = parallel.data_parallel_size * parallel.context_parallel_size
    if parallel.shard_ranks and replicas % parallel.shard_ranks:
        message = (
            f"shard_ranks {parallel.shard_ranks} does not divide the {replicas} replicas; use {divisors(replicas)}"
        )
        yield Problem("parallel.shard_ranks", parallel.shard_ranks, message)
