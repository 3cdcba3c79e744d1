"""Convert a RunConfig to a planner job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runners.config import ModelSection, RunConfig, engine_names

from .practice import practice
from .workload import Job, Model, Overlap

_WIRE_BYTES: dict[str, float | None] = {"same": None, "bf16": 2.0, "fp16": 2.0, "int8": 1.0}
"""Bytes per value between stages, by `parallel.wire_precision`."""


def model_of(model: ModelSection) -> Model:
    """Return the planner's model of section model."""
    is_gated = model.mlp == "gated"
    tied, positions = model.tied_embeddings, model.positions
    return Model(
        model.num_layers,
        model.hidden_size,
        model.num_attention_heads,
        model.sequence_length,
        model.vocab_size,
        num_kv_heads=model.num_kv_heads,
        ffn_hidden_size=model.ffn_hidden_size,
        is_gated=is_gated,
        num_experts=model.num_experts,
        experts_per_token=model.experts_per_token,
        has_tied_embeddings=not is_gated if tied is None else tied,
        has_positions=(positions or ("rotary" if is_gated else "learned")) == "learned",
        is_causal=model.attention_mask == "causal",
        head_dim=model.head_dim,
        attention="mla" if model.multi_latent_attention else "gqa",
        q_lora_rank=model.q_lora_rank if model.multi_latent_attention else 0,
        kv_lora_rank=model.kv_lora_rank,
        rope_head_dim=model.rope_head_dim,
        expert_groups=model.expert_groups,
        groups_per_token=model.groups_per_token,
        shared_experts=model.shared_experts,
        dense_layers=model.dense_layers,
        dense_ffn_size=model.dense_ffn_size,
        sliding_window=model.sliding_window,
        windowed_share=model.windowed_share,
        has_dropout=not is_gated if model.dropout is None else model.dropout,
    )


def other_model(section: Mapping[str, Any]) -> Model | None:
    """Return the model of a stored section if the formulas of a plain GPT do not describe it; None otherwise."""
    fields = {name: value for name, value in section.items() if name in ModelSection.model_fields and value is not None}
    try:
        model = model_of(ModelSection.model_validate(fields))
    except ValueError:
        return None
    return None if model.is_plain else model


def job_of(config: RunConfig, gpu: str = "") -> Job:
    """Return the job of a configuration; `gpu` decides what overlaps in trainings of other programs.

    Raises ValueError for an unsupported engine and for emulated compute.
    """
    parallel, train = config.parallel, config.train
    is_described = config.engine.is_external and config.command.describes_training
    if not (config.engine.is_planned or is_described):
        options = ", ".join(engine_names(lambda row: row.is_planned))
        remedy = ", or set command.describes_training" if config.engine.is_external else ""
        raise ValueError(f"parallel.engine {parallel.engine!r} cannot be planned; use {options}{remedy}")
    if train.compute == "emulated":
        raise ValueError("train.compute emulated takes a configured time and cannot be predicted; use real")
    overlap = _overlap(config, gpu) if is_described else Overlap(
        overlaps_gradients=parallel.zero_stage == 3,
        overlaps_tensor=False,
        overlaps_experts=False,
        overlaps_pipeline=False,
        has_cuda_graphs=False,
        dispatcher="alltoall",
    )  # fmt: skip
    return Job(
        model_of(config.model),
        train.global_batch_size,
        train.micro_batch_size,
        parallel.tensor_parallel_size,
        parallel.pipeline_parallel_size,
        parallel.data_parallel_size,
        precision=train.precision,
        recompute=train.recompute,
        schedule=parallel.schedule,
        virtual_stages=parallel.virtual_stages,
        sequence_parallel=parallel.sequence_parallel,
        zero_stage=parallel.zero_stage,
        zero_offload=parallel.zero_offload,
        optimizer_bytes=_optimizer_bytes(train.optimizer, train.precision),
        has_flash_attention=True,
        wire_bytes=_WIRE_BYTES[parallel.wire_precision],
        warmup_slope=parallel.warmup_slope if parallel.schedule == "1f1b" else 1,
        family=parallel.engine,
        context_parallel=parallel.context_parallel_size,
        context_exchange=parallel.context_exchange,
        expert_parallel=parallel.expert_parallel_size,
        expert_tensor_parallel=parallel.expert_tensor_parallel_size,
        expert_imbalance=parallel.expert_imbalance,
        grouped_products=parallel.grouped_products,
        shard_ranks=parallel.shard_ranks,
        reshards_after_forward=parallel.reshard_after_forward,
        first_stage_layers=parallel.first_stage_layers,
        last_stage_layers=parallel.last_stage_layers,
        recomputed_layers=train.recomputed_layers,
        offloads_activations=train.offload_activations,
        **overlap,
    )


def _overlap(config: RunConfig, gpu: str) -> Overlap:
    """Return what overlaps in a training of another program: as stated, otherwise as usual on the device."""
    parallel, train = config.parallel, config.train
    usual = practice(gpu, train.precision, parallel.virtual_stages, is_fsdp=parallel.zero_stage == 3)
    usual_experts = usual.overlaps_experts or parallel.schedule.startswith("dualpipe")

    def stated(value: bool | None, otherwise: bool) -> bool:
        return otherwise if value is None else value

    return Overlap(
        overlaps_gradients=stated(parallel.overlap_gradients, usual.overlaps_gradients),
        overlaps_tensor=stated(parallel.overlap_tensor, usual.overlaps_tensor),
        overlaps_experts=stated(parallel.overlap_experts, usual_experts),
        overlaps_pipeline=stated(parallel.overlap_pipeline, usual.overlaps_pipeline),
        has_cuda_graphs=stated(train.cuda_graphs, usual.has_cuda_graphs),
        dispatcher=parallel.expert_dispatcher or usual.dispatcher,
    )


def _optimizer_bytes(optimizer: str, precision: str) -> int:
    """Return bytes of optimizer state per parameter: Adam's two fp32 moments, plus an fp32 copy of 16-bit weights."""
    moments = 0 if optimizer == "sgd" else 8
    return moments if precision == "fp32" else moments + 4
