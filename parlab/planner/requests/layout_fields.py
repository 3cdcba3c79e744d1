"""A layout of a search as fields of a request, so that the same question can be asked with this layout."""

from __future__ import annotations

from typing import Any

from parlab.planner.job.workload import Job


def layout_fields(job: Job) -> dict[str, Any]:
    """Return the fields of a request that set a layout; None: the field is empty."""
    return {
        "tensor_parallel": job.tensor_parallel,
        "sequence_parallel": job.sequence_parallel,
        "pipeline_parallel": job.pipeline_parallel,
        "context_parallel": job.context_parallel,
        "expert_parallel": job.expert_parallel,
        "expert_tensor_parallel": job.expert_tensor_parallel,
        "micro_batch": job.micro_batch_size,
        "schedule": job.schedule,
        "chunks": job.virtual_stages,
        "zero": job.zero_stage,
        "shard_ranks": job.shard_ranks,
        "reshard_after_forward": job.reshards_after_forward,
        "recompute": job.recompute,
        "recomputed_layers": job.recomputed_layers,
        "first_stage_layers": job.first_stage_layers,
        "last_stage_layers": job.last_stage_layers,
        "offload_activations": job.offloads_activations,
    }
