"""Convert a RunConfig to a planner job."""

from __future__ import annotations

from runners.config import RunConfig, engine_names

from .workload import Job, Model

_WIRE_BYTES: dict[str, float | None] = {"same": None, "bf16": 2.0, "fp16": 2.0, "int8": 1.0}
"""Bytes per value between stages, by `parallel.wire_precision`."""


def job_of(config: RunConfig) -> Job:
    """Return the job of a configuration. Raises ValueError for an unsupported engine and for emulated compute."""
    parallel, train, model = config.parallel, config.train, config.model
    if not config.engine.is_planned:
        options = ", ".join(engine_names(lambda row: row.is_planned))
        raise ValueError(f"parallel.engine {parallel.engine!r} cannot be planned; use {options}")
    if train.compute == "emulated":
        raise ValueError("train.compute emulated takes a configured time and cannot be predicted; use real")
    return Job(
        Model(
            model.num_layers,
            model.hidden_size,
            model.num_attention_heads,
            model.sequence_length,
            model.vocab_size,
            is_causal=model.attention_mask == "causal",
        ),
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
        overlaps_gradients=parallel.zero_stage == 3,
        wire_bytes=_WIRE_BYTES[parallel.wire_precision],
        warmup_slope=parallel.warmup_slope if parallel.schedule == "1f1b" else 1,
        family=parallel.engine,
    )


def _optimizer_bytes(optimizer: str, precision: str) -> int:
    """Return bytes of optimizer state per parameter: Adam's two fp32 moments, plus an fp32 copy of 16-bit weights."""
    moments = 0 if optimizer == "sgd" else 8
    return moments if precision == "fp32" else moments + 4
