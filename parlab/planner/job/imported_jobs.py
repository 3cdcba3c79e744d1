"""Convert the partial configuration of an imported run to a job on a cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.planner.prediction.job_flops import flops_of
from parlab.planner.publications import rows

from .cluster import Cluster, cluster
from .hardware import Gpu, find
from .workload import Job

_GBIT = 1e9 / 8
_REQUIRED = (
    ("model", "num_layers"),
    ("model", "hidden_size"),
    ("model", "sequence_length"),
    ("train", "micro_batch_size"),
    ("train", "global_batch_size"),
)
_MODEL = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "seq": "sequence_length",
    "vocab": "vocab_size",
    "kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "ffn": "ffn_hidden_size",
    "mlp": "mlp",
    "experts": "num_experts",
    "experts_per_token": "experts_per_token",
    "expert_groups": "expert_groups",
    "groups_per_token": "groups_per_token",
    "shared_experts": "shared_experts",
    "dense_layers": "dense_layers",
    "dense_ffn": "dense_ffn_size",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "rope_head_dim": "rope_head_dim",
    "window": "sliding_window",
    "windowed_share": "windowed_share",
    "tied_embeddings": "tied_embeddings",
    "positions": "positions",
    "dropout": "dropout",
}
"""Field of a row -> field of a configuration."""
_PARALLEL = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "schedule": "schedule",
    "virtual_pp": "virtual_stages",
    "zero": "zero_stage",
    "sequence_parallel": "sequence_parallel",
    "cp": "context_parallel_size",
    "cp_comm": "context_exchange",
    "ep": "expert_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "expert_dispatcher": "expert_dispatcher",
    "expert_imbalance": "expert_imbalance",
    "grouped_products": "grouped_products",
    "reshard_after_forward": "reshard_after_forward",
    "overlap_gradients": "overlap_gradients",
    "overlap_tensor": "overlap_tensor",
    "overlap_experts": "overlap_experts",
    "overlap_pipeline": "overlap_pipeline",
    "first_stage_layers": "first_stage_layers",
    "last_stage_layers": "last_stage_layers",
}
_TRAIN = {
    "mbs": "micro_batch_size",
    "gbs": "global_batch_size",
    "precision": "precision",
    "recompute": "recompute",
    "recomputed_layers": "recomputed_layers",
    "offload_activations": "offload_activations",
    "cuda_graphs": "cuda_graphs",
}


class ShapedLinks(NamedTuple):
    """Delay and rate that an experiment set for all of its links."""

    delay_s: float
    bits_per_s: float
    """Infinite if only the delay was set."""


def stated_job(
    sections: Mapping[str, Mapping[str, Any]], gpu: Gpu, gpus: int | None = None, links: ShapedLinks | None = None
) -> tuple[Job, Cluster]:
    """Return the job described by an imported file and a cluster of `gpu` devices.

    `sections` uses the section and field names of a RunConfig (model, train, parallel, cluster), sizes in sequences and
    tokens; `gpus` is the number of GPUs stated by the file, `links` the links that it states. Unspecified fields get
    usual values: links with a set rate join single GPUs. Raises ValueError for a missing required field or an invalid
    value.
    """
    model, train, parallel = (sections.get(name) or {} for name in ("model", "train", "parallel"))
    missing = [f"{section}.{name}" for section, name in _REQUIRED if not (sections.get(section) or {}).get(name)]
    if missing:
        raise ValueError(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    is_shaped = links is not None and math.isfinite(links.bits_per_s)
    per_node = (sections.get("cluster") or {}).get("gpus_per_node") or (1 if is_shaped else 8)
    hardware: dict[str, Any] = {"gpu": gpu.name if find(gpu.name) else "A100", "node": per_node} | (
        {"count": gpus} if gpus else {}
    )
    if links is not None and is_shaped:
        hardware |= {"gbps": links.bits_per_s / 1e9, "delay_ms": 1e3 * links.delay_s}
    attention = {"attention": "mla"} if model.get("multi_latent_attention") else {}
    row = rows.read(
        {
            "model": _renamed(model, _MODEL) | attention | ({} if is_shaped else {"vocab": model.get("vocab_size")}),
            "parallel": _renamed(parallel, _PARALLEL) | _renamed(train, _TRAIN) | _shards(parallel),
            "hardware": hardware,
        }
    )
    between = row.cluster.between
    return row.job, cluster(
        gpu,
        row.cluster.gpus,
        row.cluster.gpus_per_node,
        inter_node_gbit_s=between.bandwidth / _GBIT if is_shaped else None,
        latency_s=links.delay_s if links else None,
        is_measured=is_shaped,
    )


def seconds_at(job: Job, tflops_per_gpu: float) -> float:
    """Return the time of an iteration (s) in which each GPU executes so many TFLOP/s, recomputation included."""
    return flops_of(job)[1] / (job.world_size * tflops_per_gpu * 1e12)


def _shards(parallel: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ranks that FSDP partitions over; a row with this field has sharded weights."""
    ranks = parallel.get("shard_ranks")
    return {"fsdp": ranks} if ranks and parallel.get("zero_stage") in (None, 3) else {}


def _renamed(section: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {short: section[name] for short, name in names.items() if section.get(name) is not None}
