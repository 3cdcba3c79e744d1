"""The input of the planner for people and programs: layers, GPUs, Gbit/s, billions of tokens."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationInfo, model_validator

from parlab.planner.job.cluster import Cluster, cluster, unknown_device
from parlab.planner.job.code_bases import with_code_base
from parlab.planner.job.hardware import Gpu
from parlab.planner.job.huggingface import read_config
from parlab.planner.job.practice import practice
from parlab.planner.job.presets import PRESETS, fields_of, preset
from parlab.planner.job.workload import Job, Model, Overlap, Schedule
from parlab.planner.requests.request_fields import RequestFields

from .faults import Faults, faults
from .fields import nearest_name

_FIELDS_OF_OVERLAP = {
    "overlaps_gradients": "overlap_gradients",
    "overlaps_tensor": "overlap_tensor",
    "overlaps_experts": "overlap_experts",
    "overlaps_pipeline": "overlap_pipeline",
    "has_cuda_graphs": "cuda_graphs",
    "dispatcher": "expert_dispatcher",
}
"""Setting of a job -> field of a request whose usual value depends on device and trainer."""


class PlanRequest(RequestFields):
    """A training and the cluster it would run on."""

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, data: Any) -> Any:
        """Fill omitted sizes from the known model."""
        if not isinstance(data, dict):
            return data
        data = _with_config(data)
        name = data.get("model")
        if not isinstance(name, str) or not name.strip():
            return data
        chosen = preset(name)
        if chosen is None:
            names = [entry.name for entry in PRESETS]
            nearest = nearest_name(name, names)
            hint = f"did you mean {nearest}? " if nearest else ""
            raise ValueError(f"model {name[:60]} is unknown; {hint}use one of {', '.join(names)}")
        given = {field: value for field, value in data.items() if not isinstance(value, str) or value.strip()}
        return fields_of(chosen.model) | given

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> PlanRequest:
        """Refuse impossible combinations, and a device outside of the names `devices` of the context."""
        names = (info.context or {}).get("devices")
        problems = list(faults(self))
        if names is not None and self.gpu.strip().lower() not in {name.lower() for name in names}:
            problems.append(unknown_device(self.gpu, names))
        if problems:
            raise Faults(problems)
        return self

    def job(self) -> Job:
        """Return the job of the request."""
        chunks = self.chunks if self.schedule == "interleaved-1f1b" else 1
        job = Job(
            self._model(),
            self.global_batch,
            self.micro_batch,
            self.tensor_parallel,
            self.pipeline_parallel,
            self.replicas,
            precision=self.precision,
            recompute=self.recompute,
            schedule=self.schedule,
            virtual_stages=chunks,
            sequence_parallel=self.sequence_parallel,
            zero_stage=self.zero,
            zero_offload=self.offload,
            offloads_activations=self.offload_activations,
            first_stage_layers=self.first_stage_layers,
            last_stage_layers=self.last_stage_layers,
            optimizer_bytes=_optimizer_bytes(self.optimizer_states),
            gathers_logits=self.gathered_logits,
            has_fused_norms=self.fused_norms,
            recomputes_activation=self.recompute_activation,
            has_8_bit_experts=self.compressed_experts,
            has_expandable_segments=self.expandable_segments,
            has_flash_attention=self.attention == "flash",
            context_parallel=self.context_parallel,
            context_exchange=self.context_exchange,
            expert_parallel=self.expert_parallel,
            expert_tensor_parallel=self.expert_tensor_parallel,
            expert_imbalance=self.expert_imbalance,
            grouped_products=self.grouped_products,
            shard_ranks=self.shard_ranks,
            reshards_after_forward=self.reshard_after_forward,
            recomputed_layers=self.recomputed_layers,
            **self.overlap(self.schedule, chunks, self.zero),
        )
        return with_code_base(job, self.code_base, self.release or "") if self.code_base else job

    @property
    def assumed(self) -> list[str]:
        """The fields that the question does not state, each with the value that counts instead."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name not in self.model_fields_set}
        chunks = self.chunks if self.schedule == "interleaved-1f1b" else 1
        for name, value in self.overlap(self.schedule, chunks, self.zero).items():
            field = _FIELDS_OF_OVERLAP[name]
            if getattr(self, field) is None:
                values[field] = value
        return [f"{name} {value}" for name, value in values.items() if value is not None]

    def overlap(self, schedule: Schedule, chunks: int, zero: int) -> Overlap:
        """Return what overlaps in a layout: as stated, otherwise as usual for its schedule, chunks and ZeRO stage."""
        usual = practice(self.gpu, self.precision, chunks, framework=self.code_base or "", is_fsdp=zero == 3)
        experts = usual.overlaps_experts or schedule.startswith("dualpipe")
        return Overlap(
            overlaps_gradients=_stated(self.overlap_gradients, usual.overlaps_gradients),
            overlaps_tensor=_stated(self.overlap_tensor, usual.overlaps_tensor),
            overlaps_experts=_stated(self.overlap_experts, experts),
            overlaps_pipeline=_stated(self.overlap_pipeline, usual.overlaps_pipeline),
            has_cuda_graphs=_stated(self.cuda_graphs, usual.has_cuda_graphs),
            dispatcher=self.expert_dispatcher or usual.dispatcher,
        )

    def _model(self) -> Model:
        is_gated = self.mlp == "gated"
        return Model(
            self.layers,
            self.hidden,
            self.heads,
            self.sequence,
            self.vocabulary,
            num_kv_heads=self.kv_heads,
            ffn_hidden_size=self.ffn,
            is_gated=is_gated,
            num_experts=self.experts,
            experts_per_token=self.experts_per_token,
            has_tied_embeddings=_stated(self.tied_embeddings, not is_gated),
            has_positions=(self.positions or ("rotary" if is_gated else "learned")) == "learned",
            is_causal=self.causal,
            head_dim=self.head_dim,
            attention="mla" if self.mla else "gqa",
            q_lora_rank=self.q_lora_rank if self.mla else 0,
            kv_lora_rank=self.kv_lora_rank,
            rope_head_dim=self.rope_head_dim,
            expert_groups=self.expert_groups,
            groups_per_token=self.groups_per_token,
            shared_experts=self.shared_experts,
            dense_layers=self.dense_layers,
            dense_ffn_size=self.dense_ffn,
            sliding_window=self.window,
            windowed_share=self.windowed_share,
            has_dropout=_stated(self.dropout, not is_gated),
        )

    def cluster(self, gpu: Gpu) -> Cluster:
        """Return the cluster of the request; `gpu` is the catalogue entry of its device."""
        device = gpu if self.memory_gib is None else _with_memory(gpu, self.memory_gib)
        return cluster(
            device,
            self.gpus,
            self.gpus_per_node,
            inter_node_gbit_s=self.network_gbit_s,
            link_gb_s=self.link_gb_s,
            nvlink_domain=self.nvlink_domain,
            oversubscription=self.oversubscription,
            is_rail_optimized=self.rail_optimized,
        )


def _with_config(data: dict[str, Any]) -> dict[str, Any]:
    """Fill omitted sizes from the config.json of Hugging Face, and leave a summary of it."""
    config = data.get("huggingface")
    if isinstance(config, str) and config.strip().startswith("{"):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"huggingface is not valid JSON: {error}; paste the whole config.json") from error
    if isinstance(config, str) and config.strip() and not str(data.get("layers") or "").strip():
        # The summary of a config.json comes with the sizes that were read from it.
        raise ValueError(f"huggingface {config[:40]!r} is not a config.json; paste its whole text")
    if not isinstance(config, dict):
        return data
    stated = {field: value for field, value in data.items() if not isinstance(value, str) or value.strip()}
    sequence = str(stated.get("sequence", ""))
    length = int(sequence) if sequence.isdecimal() and len(sequence) < 10 else 0
    try:
        reading = read_config(config, length or 4096)
    except ValueError as error:
        raise ValueError(f"huggingface: {error}") from error
    return fields_of(reading.model) | stated | {"huggingface": reading.summary}


def _with_memory(gpu: Gpu, gib: float) -> Gpu:
    return Gpu(**{**vars(gpu), "memory_bytes": int(gib * 2**30)})


def _optimizer_bytes(states: str | None) -> int | None:
    """Return bytes of optimizer state per parameter: two moments, and an fp32 copy of the weights."""
    return {"bf16": 8, "8 bit": 6, "no fp32 weights": 4, "fp32": 12}[states] if states else None


def _stated(value: bool | None, usual: bool) -> bool:
    return usual if value is None else value
