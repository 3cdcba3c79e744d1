"""The fields of a request of the planner, with ranges, defaults and meanings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from parlab.planner.job.code_bases import CodeBaseName
from parlab.planner.job.workload import Dispatcher, GroupedProducts

_MOST_NODES = 4096


def _empty_as_none(value: Any) -> Any:
    """Convert an empty form field to None."""
    return None if isinstance(value, str) and not value.strip() else value


def _number(value: Any) -> Any:
    """Refuse true and false, which count as 1 and 0 in Python."""
    if isinstance(value, bool):
        raise ValueError("use a number")
    return value


_Whole = Annotated[int, BeforeValidator(_number)]
_Real = Annotated[float, BeforeValidator(_number)]
_Size = Annotated[_Whole, Field(ge=1, le=2**31)]
_MaybeSize = Annotated[_Size | None, BeforeValidator(_empty_as_none)]
_MaybeBool = Annotated[bool | None, BeforeValidator(_empty_as_none)]
_Positive = Annotated[_Real, Field(gt=0, le=1e12, allow_inf_nan=False)]
_MaybePositive = Annotated[_Positive | None, BeforeValidator(_empty_as_none)]

_MaybeGigabits = Annotated[Annotated[_Positive, Field(le=1e6)] | None, BeforeValidator(_empty_as_none)]
_MaybeGigabytes = Annotated[Annotated[_Positive, Field(le=1e5)] | None, BeforeValidator(_empty_as_none)]


class RequestFields(BaseModel):
    """The fields of a request by themselves; `PlanRequest` also checks that they fit together."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    model: Annotated[str | None, BeforeValidator(_empty_as_none)] = None
    """Name of a known model, whose sizes replace those of omitted fields; empty: none."""
    huggingface: Annotated[str | None, BeforeValidator(_empty_as_none)] = None
    """config.json of Hugging Face (an object, or its text): its sizes replace those of omitted fields, with 4096 tokens
    unless sequence is stated. An answer has the type of the model here, and the fields that were not read."""
    layers: Annotated[_Whole, Field(ge=1, le=10_000)] = 96
    """Transformer layers."""
    hidden: Annotated[_Whole, Field(ge=1, le=2**20)] = 12_288
    """Width of the residual stream."""
    heads: Annotated[_Whole, Field(ge=1, le=2**16)] = 96
    """Attention heads of a layer."""
    kv_heads: _MaybeSize = None
    """Heads of keys and values; empty: as many as heads."""
    ffn: _MaybeSize = None
    """Width of the MLP; empty: 4 times the width of the residual stream."""
    mlp: Literal["plain", "gated"] = "plain"
    """plain: two matrices; gated: three (SwiGLU)."""
    experts: Annotated[_Whole, Field(ge=1, le=4096)] = 1
    """MLPs per layer; each token uses some of them."""
    experts_per_token: Annotated[_Whole, Field(ge=1, le=4096)] = 1
    """MLPs that each token is routed to."""
    expert_groups: Annotated[_Whole, Field(ge=1, le=4096)] = 1
    """Groups of experts, for routing that is limited to some of them."""
    groups_per_token: _MaybeSize = None
    """Groups that the experts of a token come from (node-limited routing); empty: all."""
    shared_experts: Annotated[_Whole, Field(ge=0, le=256)] = 0
    """MLPs that every token uses."""
    dense_layers: Annotated[_Whole, Field(ge=0, le=10_000)] = 0
    """First layers with an MLP instead of experts."""
    dense_ffn: _MaybeSize = None
    """Width of the MLP of these layers; empty: the width of an expert."""
    head_dim: _MaybeSize = None
    """Width of one head; empty: width of the residual stream / heads."""
    mla: bool = False
    """Keys and values are compressed (multi-head latent attention)."""
    q_lora_rank: Annotated[_Whole, Field(ge=0, le=2**20)] = 1536
    """Width of the compressed queries; for mla, 0: not compressed."""
    kv_lora_rank: Annotated[_Whole, Field(ge=1, le=2**20)] = 512
    """Width of the compressed keys and values; for mla."""
    rope_head_dim: Annotated[_Whole, Field(ge=1, le=2**16)] = 64
    """Width of the rotary part of a head; for mla."""
    window: _MaybeSize = None
    """Keys that a token sees in layers with a sliding window; empty: all."""
    windowed_share: Annotated[_Real, Field(ge=0, le=1)] = 0.5
    """Share of the layers with a sliding window."""
    tied_embeddings: _MaybeBool = None
    """The output layer is the token embedding; empty: tied unless the MLP is gated."""
    positions: Annotated[Literal["learned", "rotary"] | None, BeforeValidator(_empty_as_none)] = None
    """Position embeddings; empty: learned unless the MLP is gated."""
    dropout: _MaybeBool = None
    """Dropout stores masks; empty: used unless the MLP is gated."""
    causal: bool = True
    """A token sees only earlier ones."""
    sequence: Annotated[_Whole, Field(ge=1, le=2**24)] = 2048
    """Tokens of a sequence."""
    vocabulary: Annotated[_Whole, Field(ge=1, le=2**24)] = 51_200
    """Entries of the token embedding."""
    attention: Literal["flash", "plain"] = "flash"
    """flash: fused, does not store attention scores; plain: stores them."""
    global_batch: Annotated[_Whole, Field(ge=1, le=2**24)] = 1536
    """Sequences of an iteration, over all replicas."""
    micro_batch: Annotated[_Whole, Field(ge=1, le=2**20)] = 1
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
    tensor_parallel: Annotated[_Whole, Field(ge=1, le=4096)] = 8
    """GPUs that share each layer."""
    sequence_parallel: bool = False
    """Tensor parallel ranks also split norms and residuals."""
    pipeline_parallel: Annotated[_Whole, Field(ge=1, le=4096)] = 12
    """Stages that the layers are split into."""
    schedule: Literal["1f1b", "interleaved-1f1b", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v"] = "1f1b"
    """Order of forward and backward passes in a pipeline."""
    chunks: Annotated[_Whole, Field(ge=1, le=256)] = 1
    """Chunks of layers on each rank; for interleaved-1f1b."""
    first_stage_layers: _MaybeSize = None
    """Layers of the first stage; empty: an even split."""
    last_stage_layers: _MaybeSize = None
    """Layers of the last stage; empty: an even split."""
    zero: Annotated[_Whole, Field(ge=0, le=3)] = 0
    """ZeRO stage; 1 is also the distributed optimizer, 3 also FSDP."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """States that ZeRO keeps in CPU memory: none, optimizer state, weights as well."""
    shard_ranks: _MaybeSize = None
    """Ranks over which ZeRO partitions (HSDP); empty: all data and context parallel ranks."""
    reshard_after_forward: bool = True
    """ZeRO 3 and FSDP gather the weights again for the backward pass."""
    context_parallel: Annotated[_Whole, Field(ge=1, le=4096)] = 1
    """GPUs that share each sequence."""
    context_exchange: Literal["ring", "all-gather"] = "ring"
    """How these GPUs exchange keys and values."""
    expert_parallel: Annotated[_Whole, Field(ge=1, le=4096)] = 1
    """GPUs that share the experts of a layer."""
    expert_tensor_parallel: Annotated[_Whole, Field(ge=1, le=4096)] = 1
    """GPUs that share each expert."""
    expert_dispatcher: Annotated[Dispatcher | None, BeforeValidator(_empty_as_none)] = None
    """What sends tokens to the GPUs of their experts: NCCL's collectives, DeepEP or Hybrid-EP; empty: as usual."""
    expert_imbalance: Annotated[_Real, Field(ge=1, le=4096, allow_inf_nan=False)] = 1.0
    """Routed tokens of the GPU that has most of its expert parallel group, relative to the mean; 1: balanced."""
    grouped_products: GroupedProducts = "grouped"
    """Products of experts: each expert on its own, one kernel for all, or fused with activation and quantisation."""
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
    code_base: Annotated[CodeBaseName | None, BeforeValidator(_empty_as_none)] = None
    """Trainer, whose habits decide memory and overlap; empty: unknown, so that the answer is less certain."""
    release: Annotated[Annotated[str, Field(max_length=40)] | None, BeforeValidator(_empty_as_none)] = None
    """Release of the trainer, like 26.04; empty: unknown."""
    optimizer_states: Annotated[
        Literal["fp32", "bf16", "8 bit", "no fp32 weights"] | None, BeforeValidator(_empty_as_none)
    ] = None
    """Precision of the two moments of Adam; no fp32 weights: all states in bf16, without an fp32 copy of the weights;
    empty: as usual for the code base."""
    recompute_activation: bool = False
    """The activation function of a gated MLP is recomputed instead of storing its product."""
    compressed_experts: bool = False
    """Experts store their inputs in 8 bits and no outputs."""
    expandable_segments: bool = False
    """PyTorch's allocator grows its segments, which leaves fewer fragments."""
    fused_norms: _MaybeBool = None
    """Norms are one kernel each; no: eager ones, which store more; empty: as usual for the code base."""
    gathered_logits: bool = False
    """Tensor parallel ranks gather the logits of the whole vocabulary before the loss."""
    gpu: Annotated[str, Field(min_length=1, max_length=80)] = "A100 SXM4 80 GB"
    """Name of the device in the catalogue."""
    memory_gib: _MaybePositive = None
    """Memory of one device (GiB); empty: the value in the catalogue."""
    nodes: Annotated[_Whole, Field(ge=1, le=_MOST_NODES)] = 48
    """Number of nodes."""
    gpus_per_node: Annotated[_Whole, Field(ge=1, le=1024)] = 8
    """Devices per node."""
    nvlink_domain: _MaybeSize = None
    """Devices that NVLink connects; empty: the usual number, at least those of a node."""
    network_gbit_s: _MaybeGigabits = None
    """Network bandwidth of one node (Gbit/s); empty: the usual value for such nodes."""
    link_gb_s: _MaybeGigabytes = None
    """Bandwidth of a device inside its node, one direction (GB/s); empty: that of its usual links."""
    oversubscription: Annotated[_Real, Field(ge=1, le=64, allow_inf_nan=False)] = 1.0
    """Bandwidth below a leaf switch relative to that of its links to other switches; 1: full bandwidth everywhere."""
    rail_optimized: bool = False
    """GPUs of equal rank in their nodes share a leaf switch, so that a switch reaches more nodes."""
    tokens_billion: _Positive = 300.0
    """Tokens of the training (10^9)."""
    price: Annotated[
        Annotated[_Real, Field(ge=0, le=1e6, allow_inf_nan=False)] | None, BeforeValidator(_empty_as_none)
    ] = None
    """Price of one GPU hour, in any currency; empty: no cost is computed."""
    wanted_days: _MaybePositive = None
    """Deadline of the training (days); empty: no verdict."""
    wanted_cost: _MaybePositive = None
    """Most that the training may cost, in the currency of the price; empty: any cost."""

    @property
    def gpus(self) -> int:
        """Total number of devices."""
        return self.nodes * self.gpus_per_node

    @property
    def replicas(self) -> int:
        """Data parallel size: the GPUs divided by tensor, pipeline and context parallel size."""
        return max(1, self.gpus // (self.tensor_parallel * self.pipeline_parallel * self.context_parallel))
