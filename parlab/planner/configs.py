"""parlab's own configurations as the planner sees them."""

from __future__ import annotations

from runners.config import RunConfig, engine_names

from .workload import Job, Model


def job_of(config: RunConfig) -> Job:
    """The job that a configuration describes. Raises ValueError for a configuration that trains no whole model."""
    parallel, train, model = config.parallel, config.train, config.model
    if not config.engine.is_planned:
        choice = ", ".join(engine_names(lambda row: row.is_planned))
        raise ValueError(f"parallel.engine {parallel.engine!r} is not planned; use {choice}")
    if train.compute == "emulated":
        raise ValueError("train.compute emulated takes the time it is told; use real")
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
        family=parallel.engine,
    )


def _optimizer_bytes(optimizer: str, precision: str) -> int:
    """Two moments of Adam in fp32; 16-bit weights have an fp32 copy beside them."""
    moments = 0 if optimizer == "sgd" else 8
    return moments if precision == "fp32" else moments + 4
