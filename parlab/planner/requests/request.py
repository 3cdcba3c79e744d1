"""The input of the planner for people and programs: layers, GPUs, Gbit/s, billions of tokens."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from parlab.planner.job.cluster import Cluster, cluster, unknown_device
from parlab.planner.job.hardware import Gpu
from parlab.planner.job.huggingface import read_config
from parlab.planner.job.practice import practice
from parlab.planner.job.presets import PRESETS, fields_of, preset
from parlab.planner.job.workload import Job, Model, Overlap, Schedule

from .faults import Faults, faults
from .fields import nearest_name

_MOST_NODES = 4096


def _empty_as_none(value: Any) -> Any:
    """Convert an empty form field to None."""
    return None if isinstance(value, str) and not value.strip() else value


_Size = Annotated[int, Field(ge=1, le=2**31)]
_MaybeSize = Annotated[_Size | None, BeforeValidator(_empty_as_none)]
_MaybeBool = Annotated[bool | None, BeforeValidator(_empty_as_none)]
_Positive = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
_MaybePositive = Annotated[_Positive | None, BeforeValidator(_empty_as_none)]


class PlanRequest(BaseModel):
    """A training and the cluster it would run on."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: Annotated[str | None, BeforeValidator(_empty_as_none)] = None
    """Name of a known model, whose sizes replace those of omitted fields; empty: none."""
    huggingface: Annotated[str | None, BeforeValidator(_empty_as_none)] = None
    """config.json of Hugging Face (an object, or its text): its sizes replace those of omitted fields, with 4096 tokens
    unless sequence is stated. An answer has the type of the model here, and the fields that were not read."""
    layers: Annotated[int, Field(ge=1, le=10_000)] = 96
    """Transformer layers."""
    hidden: Annotated[int, Field(ge=1, le=2**20)] = 12_288
    """Width of the residual stream."""
    heads: Annotated[int, Field(ge=1, le=2**16)] = 96
    """Attention heads of a layer."""
    kv_heads: _MaybeSize = None
    """Heads of keys and values; empty: as many as heads."""
    ffn: _MaybeSize = None
    """Width of the MLP; empty: 4 times the width of the residual stream."""
    mlp: Literal["plain", "gated"] = "plain"
    """plain: two matrices; gated: three (SwiGLU)."""
    experts: Annotated[int, Field(ge=1, le=4096)] = 1
    """MLPs per layer; each token uses some of them."""
    experts_per_token: Annotated[int, Field(ge=1, le=4096)] = 1
    """MLPs that each token is routed to."""
    shared_experts: Annotated[int, Field(ge=0, le=256)] = 0
    """MLPs that every token uses."""
    dense_layers: Annotated[int, Field(ge=0, le=10_000)] = 0
    """First layers with an MLP instead of experts."""
    dense_ffn: _MaybeSize = None
    """Width of the MLP of these layers; empty: the width of an expert."""
    head_dim: _MaybeSize = None
    """Width of one head; empty: width of the residual stream / heads."""
    mla: bool = False
    """Keys and values are compressed (multi-head latent attention)."""
    q_lora_rank: Annotated[int, Field(ge=0, le=2**20)] = 1536
    """Width of the compressed queries; for mla, 0: not compressed."""
    kv_lora_rank: Annotated[int, Field(ge=1, le=2**20)] = 512
    """Width of the compressed keys and values; for mla."""
    rope_head_dim: Annotated[int, Field(ge=1, le=2**16)] = 64
    """Width of the rotary part of a head; for mla."""
    window: _MaybeSize = None
    """Keys that a token sees in layers with a sliding window; empty: all."""
    windowed_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the layers with a sliding window."""
    tied_embeddings: _MaybeBool = None
    """The output layer is the token embedding; empty: tied unless the MLP is gated."""
    positions: Annotated[Literal["learned", "rotary"] | None, BeforeValidator(_empty_as_none)] = None
    """Position embeddings; empty: learned unless the MLP is gated."""
    dropout: _MaybeBool = None
    """Dropout stores masks; empty: used unless the MLP is gated."""
    causal: bool = True
    """A token sees only earlier ones."""
    sequence: Annotated[int, Field(ge=1, le=2**24)] = 2048
    """Tokens of a sequence."""
    vocabulary: Annotated[int, Field(ge=1, le=2**24)] = 51_200
    """Entries of the token embedding."""
    attention: Literal["flash", "plain"] = "flash"
    """flash: fused, does not store attention scores; plain: stores them."""
    global_batch: Annotated[int, Field(ge=1, le=2**24)] = 1536
    """Sequences of an iteration, over all replicas."""
    micro_batch: Annotated[int, Field(ge=1, le=2**20)] = 1
    """Sequences of one forward pass."""
    precision: Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32"] = "bf16"
    """Arithmetic of the matrix products."""
    recompute: Literal["none", "selective", "operations", "full"] = "full"
    """Activations that the backward pass recomputes: none; norms and activation functions (unfused attention: the
    scores); all but attention and every second matrix product; all."""
    offload_activations: bool = False
    """Stored activations wait in CPU memory; the copies overlap with computation."""
    recomputed_layers: _MaybeSize = None
    """Layers of each stage that recompute; empty: all."""
    tensor_parallel: Annotated[int, Field(ge=1, le=4096)] = 8
    """GPUs that share each layer."""
    sequence_parallel: bool = False
    """Tensor parallel ranks also split norms and residuals."""
    pipeline_parallel: Annotated[int, Field(ge=1, le=4096)] = 12
    """Stages that the layers are split into."""
    schedule: Literal["1f1b", "interleaved-1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v"] = "1f1b"
    """Order of forward and backward passes in a pipeline."""
    chunks: Annotated[int, Field(ge=1, le=256)] = 1
    """Chunks of layers on each rank; for interleaved-1f1b."""
    first_stage_layers: _MaybeSize = None
    """Layers of the first stage; empty: an even split."""
    last_stage_layers: _MaybeSize = None
    """Layers of the last stage; empty: an even split."""
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    """ZeRO stage; 1 is also the distributed optimizer, 3 also FSDP."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """States that ZeRO keeps in CPU memory: none, optimizer state, weights as well."""
    shard_ranks: _MaybeSize = None
    """Ranks over which ZeRO partitions (HSDP); empty: all data and context parallel ranks."""
    reshard_after_forward: bool = True
    """ZeRO 3 and FSDP gather the weights again for the backward pass."""
    context_parallel: Annotated[int, Field(ge=1, le=4096)] = 1
    """GPUs that share each sequence."""
    context_exchange: Literal["ring", "all-gather"] = "ring"
    """How these GPUs exchange keys and values."""
    expert_parallel: Annotated[int, Field(ge=1, le=4096)] = 1
    """GPUs that share the experts of a layer."""
    expert_tensor_parallel: Annotated[int, Field(ge=1, le=4096)] = 1
    """GPUs that share each expert."""
    overlap_gradients: _MaybeBool = None
    """Reduction of gradients overlaps with the backward pass; empty: as usual on the device."""
    overlap_tensor: _MaybeBool = None
    """Tensor parallel messages overlap with matrix products; empty: as usual."""
    overlap_experts: _MaybeBool = None
    """The all-to-all of experts overlaps with matrix products; empty: as usual."""
    overlap_pipeline: _MaybeBool = None
    """Messages between stages overlap with computation if interleaved; empty: as usual."""
    cuda_graphs: _MaybeBool = None
    """Kernels are recorded in graphs; empty: as usual."""
    gpu: Annotated[str, Field(min_length=1, max_length=80)] = "A100 SXM4 80 GB"
    """Name of the device in the catalogue."""
    memory_gib: _MaybePositive = None
    """Memory of one device (GiB); empty: the value in the catalogue."""
    nodes: Annotated[int, Field(ge=1, le=_MOST_NODES)] = 48
    """Number of nodes."""
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] = 8
    """Devices per node."""
    nvlink_domain: _MaybeSize = None
    """Devices that NVLink connects; empty: the usual number, at least those of a node."""
    network_gbit_s: _MaybePositive = None
    """Network bandwidth of one node (Gbit/s); empty: the usual value for such nodes."""
    link_gb_s: _MaybePositive = None
    """Bandwidth of a device inside its node, one direction (GB/s); empty: that of its usual links."""
    oversubscription: Annotated[float, Field(ge=1, le=64, allow_inf_nan=False)] = 1.0
    """Bandwidth below a leaf switch relative to that of its links to other switches; 1: full bandwidth everywhere."""
    rail_optimized: bool = False
    """GPUs of equal rank in their nodes share a leaf switch, so that a switch reaches more nodes."""
    tokens_billion: _Positive = 300.0
    """Tokens of the training (10^9)."""
    price: Annotated[
        Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None, BeforeValidator(_empty_as_none)
    ] = None
    """Price of one GPU hour, in any currency; empty: no cost is computed."""
    wanted_days: _MaybePositive = None
    """Deadline of the training (days); empty: no verdict."""

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

    @property
    def gpus(self) -> int:
        """Total number of devices."""
        return self.nodes * self.gpus_per_node

    @property
    def replicas(self) -> int:
        """Data parallel size: the GPUs divided by tensor, pipeline and context parallel size."""
        return max(1, self.gpus // (self.tensor_parallel * self.pipeline_parallel * self.context_parallel))

    def job(self) -> Job:
        """Return the job of the request."""
        chunks = self.chunks if self.schedule == "interleaved-1f1b" else 1
        return Job(
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
            copies_logits=self.zero == 3,
            has_flash_attention=self.attention == "flash",
            context_parallel=self.context_parallel,
            context_exchange=self.context_exchange,
            expert_parallel=self.expert_parallel,
            expert_tensor_parallel=self.expert_tensor_parallel,
            shard_ranks=self.shard_ranks,
            reshards_after_forward=self.reshard_after_forward,
            recomputed_layers=self.recomputed_layers,
            **self.overlap(self.schedule, chunks, self.zero),
        )

    def overlap(self, schedule: Schedule, chunks: int, zero: int) -> Overlap:
        """Return what overlaps in a layout: as stated, otherwise as usual for its schedule, chunks and ZeRO stage."""
        usual = practice(self.gpu, self.precision, chunks, is_fsdp=zero == 3)
        experts = usual.overlaps_experts or schedule.startswith("dualpipe")
        return Overlap(
            overlaps_gradients=_stated(self.overlap_gradients, usual.overlaps_gradients),
            overlaps_tensor=_stated(self.overlap_tensor, usual.overlaps_tensor),
            overlaps_experts=_stated(self.overlap_experts, experts),
            overlaps_pipeline=_stated(self.overlap_pipeline, usual.overlaps_pipeline),
            has_cuda_graphs=_stated(self.cuda_graphs, usual.has_cuda_graphs),
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
        except json.JSONDecodeError as error:
            raise ValueError(f"huggingface is not valid JSON: {error}; paste the whole config.json") from error
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


def _stated(value: bool | None, usual: bool) -> bool:
    return usual if value is None else value
