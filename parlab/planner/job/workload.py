"""The planner's description of a training: model, batch and layout.

It covers more than a RunConfig (grouped queries, gated MLPs, experts, schedules of other trainers), so that the same
formulas predict published measurements and parlab's configurations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypedDict, get_args

from .model import LARGEST, Attention, Model, check_size

__all__ = [
    "LARGEST",
    "PRECISIONS",
    "SCHEDULES",
    "Attention",
    "Dispatcher",
    "GroupedProducts",
    "Job",
    "Model",
    "Overlap",
    "Precision",
    "Recompute",
    "Schedule",
]

Recompute = Literal["none", "selective", "operations", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v"]
Dispatcher = Literal["allgather", "alltoall", "deepep", "hybridep"]
GroupedProducts = Literal["separate", "grouped", "fused"]
Precision = Literal["fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class Overlap(TypedDict):
    """Settings of a job that frameworks choose by schedule and ZeRO stage."""

    overlaps_gradients: bool
    overlaps_tensor: bool
    overlaps_experts: bool
    overlaps_pipeline: bool
    has_cuda_graphs: bool
    dispatcher: Dispatcher


@dataclass(frozen=True)
class Job:
    """One training job: model, batch, precision and layout."""

    model: Model
    global_batch_size: int
    micro_batch_size: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    precision: Precision = "bf16"
    recompute: Recompute = "none"
    """selective: the attention core; with fused attention norms and activation functions instead (Megatron-Core's
    modules); operations: all but attention and every second matrix product (torchtitan); full: all."""
    schedule: Schedule = "1f1b"
    virtual_stages: int = 1
    sequence_parallel: bool = False
    zero_stage: int = 0
    zero_offload: Literal["none", "optimizer", "all"] = "none"
    has_checkpoints_on_cpu: bool = False
    """Recomputation starts from activations stored in CPU memory."""
    offloads_activations: bool = False
    """Stored activations wait in CPU memory until the backward pass; copies overlap with computation."""
    gradient_bytes: int | None = None
    """Bytes per accumulated gradient; None: the bytes of the precision."""
    optimizer_bytes: int | None = None
    """Bytes of optimizer state per parameter, including the fp32 copy; None: those of Adam."""
    overlaps_gradients: bool = False
    """Gradient communication overlaps with the backward pass."""
    gradient_messages: int = 1
    """Number of messages per gradient reduction: 1 for one flat buffer, many if each tensor is reduced separately."""
    has_flash_attention: bool = False
    """Attention does not store the matrix of scores."""
    family: str = ""
    """Engine or framework that trains; each calibration is for one."""
    code_base: str = ""
    """Name of the trainer (`code_bases.CODE_BASES`); "": unknown."""
    release: str = ""
    """Release of the trainer; "": unknown."""
    context_parallel: int = 1
    """Ranks that share each sequence."""
    context_exchange: Literal["ring", "all-gather"] = "ring"
    """How context parallel ranks exchange keys and values: ring overlaps with attention, all-gather does not."""
    expert_parallel: int = 1
    """Ranks that share the experts of a layer; they are data, context and tensor parallel ranks."""
    expert_tensor_parallel: int = 1
    """Ranks that share each expert."""
    dispatcher: Dispatcher = "alltoall"
    """What sends tokens to the ranks of their experts: NCCL's collectives, DeepEP or Hybrid-EP."""
    expert_imbalance: float = 1.0
    """Routed tokens of the expert parallel rank that has most, relative to the mean."""
    grouped_products: GroupedProducts = "grouped"
    """separate: each expert of a rank runs on its own; grouped: one kernel for all experts; fused: with the activation
    function and the quantisation of its operands."""
    shard_ranks: int | None = None
    """Ranks over which ZeRO and FSDP partition (HSDP: fewer than the replicas); None: all data and context ranks."""
    reshards_after_forward: bool = True
    """ZeRO-3 and FSDP free gathered weights after the forward pass and gather them again for the backward pass."""
    overlaps_tensor: bool = False
    """Tensor parallel communication overlaps with the matrix products."""
    overlaps_pipeline: bool = False
    """Messages between stages overlap with computation in interleaved schedules."""
    overlaps_experts: bool = False
    """The all-to-all of experts overlaps with the matrix products of another micro batch."""
    first_stage_layers: int | None = None
    """Layers of the first stage; None: an even split."""
    last_stage_layers: int | None = None
    """Layers of the last stage; None: an even split."""
    wire_bytes: float | None = None
    """Bytes per value in messages between stages; None: those of activations."""
    warmup_slope: int = 1
    """1F1B: warm-up forward passes of a stage for each later stage."""
    recomputed_layers: int | None = None
    """Layers of each stage that recompute; None: all."""
    fuses_pointwise: bool = True
    """Norms, rotary positions and activation functions are fused by a compiler or written as one kernel each."""
    has_fused_norms: bool | None = None
    """Norms are one kernel each, also where other kernels are eager; False: they are eager; None: as the other ones."""
    fuses_loss: bool = False
    """The loss overwrites the logits with their gradients instead of copying them in fp32."""
    copies_logits: bool = False
    """The loss keeps two copies of the logits in fp32 (torch's cross entropy); otherwise one (Megatron-LM's)."""
    gathers_logits: bool = False
    """Tensor parallel ranks gather the logits of the whole vocabulary before the loss; otherwise each keeps a part."""
    recomputes_activation: bool = False
    """The product of a gated MLP is not stored: the activation function is recomputed from its inputs."""
    has_8_bit_experts: bool = False
    """Experts store their inputs in 8 bits, and no outputs: the router's weights apply to the activation function."""
    has_expandable_segments: bool = False
    """The allocator grows its segments (`expandable_segments` of PyTorch), which leaves fewer fragments."""
    has_cuda_graphs: bool = False
    """Recorded kernels: the processor launches a few graphs per layer instead of each kernel."""
    flash_generation: int | None = None
    """Generation of the fused attention kernel (1 to 3); None: the newest for the device."""

    def __post_init__(self) -> None:
        for name in (
            "global_batch_size",
            "micro_batch_size",
            "tensor_parallel",
            "pipeline_parallel",
            "data_parallel",
            "virtual_stages",
            "context_parallel",
            "expert_parallel",
            "expert_tensor_parallel",
            "warmup_slope",
        ):
            check_size(name, getattr(self, name))
        if self.schedule not in SCHEDULES:
            raise ValueError(f"unknown schedule {self.schedule!r}; use {', '.join(SCHEDULES)}")
        ends = (self.first_stage_layers, self.last_stage_layers)
        for name, layers in zip(("first_stage_layers", "last_stage_layers"), ends, strict=True):
            if layers is not None:
                check_size(name, layers)
        if self.pipeline_parallel > self.model.num_layers:
            raise ValueError(
                f"pipeline_parallel {self.pipeline_parallel} is more than num_layers {self.model.num_layers}; use"
                f" {self.model.num_layers} stages or fewer"
            )
        if self.pipeline_parallel > 1 and sum(size or 1 for size in ends) + self.pipeline_parallel - 2 > (
            self.model.num_layers
        ):
            raise ValueError(
                f"first_stage_layers {ends[0]} and last_stage_layers {ends[1]} leave too few of the"
                f" {self.model.num_layers} layers for {self.pipeline_parallel} stages; use fewer"
            )
        if self.zero_stage not in (0, 1, 2, 3):
            raise ValueError(f"zero_stage {self.zero_stage} is out of range; use 0, 1, 2 or 3")
        if not 1 <= self.expert_imbalance <= LARGEST:
            raise ValueError(f"expert_imbalance {self.expert_imbalance:g} is out of range; use 1 or more")
        if self.model.num_experts % self.expert_parallel:
            raise ValueError(
                f"expert_parallel {self.expert_parallel} does not divide num_experts {self.model.num_experts};"
                " use a divisor"
            )

    @cached_property
    def world_size(self) -> int:
        """GPUs (or processes) of the job."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel * self.context_parallel

    @cached_property
    def replicas(self) -> int:
        """Ranks with the same non-expert weights: data times context parallel size."""
        return self.data_parallel * self.context_parallel

    @cached_property
    def expert_replicas(self) -> int:
        """Ranks with the same experts."""
        ranks = self.tensor_parallel * self.replicas
        return max(1, ranks // (self.expert_parallel * self.expert_tensor_parallel))

    @cached_property
    def busiest_share(self) -> float:
        """Routed tokens of the rank that has most, relative to the mean; at most all tokens of an expert group."""
        return min(self.expert_imbalance, float(self.expert_parallel))

    @cached_property
    def shards(self) -> int:
        """Ranks over which ZeRO partitions."""
        return min(self.shard_ranks or self.replicas, self.replicas)

    @cached_property
    def effective_zero(self) -> int:
        """The ZeRO stage; 0 if there is nothing to partition over."""
        return self.zero_stage if self.shards > 1 else 0

    @cached_property
    def chunks(self) -> int:
        """Chunks of layers on each rank; more than 1 only in interleaved schedules."""
        return self.virtual_stages if self.schedule == "interleaved-1f1b" else 1

    @cached_property
    def num_micro_batches(self) -> int:
        """Micro batches per data parallel rank and iteration, rounded up."""
        return max(1, math.ceil(self.global_batch_size / (self.micro_batch_size * self.data_parallel)))

    @cached_property
    def rank_tokens(self) -> float:
        """Tokens of one micro batch on one rank."""
        return self.micro_batch_size * self.model.sequence_length / self.context_parallel

    @cached_property
    def recomputed_share(self) -> float:
        """Share of the layers that recompute."""
        if self.recomputed_layers is None:
            return 1.0
        return min(1.0, self.recomputed_layers * self.pipeline_parallel / self.model.num_layers)

    @property
    def tokens(self) -> int:
        """Tokens of one iteration."""
        return self.global_batch_size * self.model.sequence_length

    @cached_property
    def value_bytes(self) -> int:
        """Bytes per weight or activation; fp8 and fp4 are for matrix products only, activations stay in 16 bits."""
        return 4 if self.precision == "fp32" else 2

    @property
    def is_low_precision(self) -> bool:
        """Matrix products run in 8 or 4 bits."""
        return self.precision in ("fp8", "mxfp8", "nvfp4")
