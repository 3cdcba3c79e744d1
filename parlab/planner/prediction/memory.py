"""Predict the memory of the GPU that needs most, part by part.

Sources: Rajbhandari et al. 2020 (ZeRO) for model states, Korthikanti et al. 2022 for activations, Qi et al. 2023 and
Narayanan et al. 2021 for the micro batches in flight on a stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from parlab.planner.calibration.recorded_formulas import larger, smaller
from parlab.planner.job.workload import Job

from .parameters import MemoryParameters

_NETWORK_CHANNELS = 1 / 3
"""NCCL's channels between nodes relative to those inside: one per network card, 8, instead of 24 on NVSwitch (A100)."""

_EAGER_NORMS = 12.0
"""Bytes per value of the residual stream that the two eager norms of a layer store beside input and output: the input
in fp32 and the quotient in 16 bits."""
_GATHERED_COPIES = 2.0
"""Copies of gathered logits in relation to divided ones: 16 bytes per logit, the gathered ones and their gradient in 16
bits, and in fp32 their copy, its logarithm of the softmax and its gradient."""
_EXPANDABLE_SHARE = 0.5
"""Share of the allocator's fragments that remain with segments that grow."""


@dataclass(frozen=True)
class Memory:
    """Bytes on the GPU that needs most, in parts that add up to `total_bytes`."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float
    buffers_bytes: float
    overhead_bytes: float
    in_flight: float
    """Micro batches whose activations that stage holds."""

    @property
    def total_bytes(self) -> float:
        """Sum of all parts."""
        return (
            self.weights_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.logits_bytes
            + self.buffers_bytes
            + self.overhead_bytes
        )


def micro_batches_in_flight(job: Job, stage: int = 0) -> float:
    """Return the largest number of micro batches whose activations a stage holds, in units of a whole stage.

    For stage r of p, m micro batches and v chunks: GPipe m; 1F1B p - r; interleaved 1F1B ((v + 1) p - 2 r - 1)/v, as
    1F1B with one chunk; ZB-H1 and ZB-V p; ZB-H2 2p - 1; DualPipe p + 1; at most m (Narayanan et al. 2021, section 2.2;
    Qi et al. 2023, sections 2.3 and 2.4; DeepSeek-V3 report 2024, table 2). A warm-up slope w holds w (p - r - 1) + 1.
    """
    stages, micro_batches, chunks = job.pipeline_parallel, job.num_micro_batches, job.chunks
    in_flight = {
        "gpipe": micro_batches,
        "1f1b": job.warmup_slope * (stages - stage - 1) + 1,
        "interleaved-1f1b": ((chunks + 1) * stages - 2 * stage - 1) / chunks if chunks > 1 else stages - stage,
        "zb-h1": stages,
        "zb-h2": 2 * stages - 1,
        "zb-v": stages,
        "dualpipe": stages + 1,
        "dualpipe-v": stages + 1,
    }[job.schedule]
    return float(min(in_flight if stages > 1 else 1, micro_batches))


def activation_bytes(job: Job) -> tuple[float, float]:
    """Return the activation bytes of one layer and micro batch: stored until the backward pass, and needed during it.

    In 16 bits a GPT layer stores s b h (10 + 24/t + 5 a s/(h t)), all divided by t with sequence parallelism. Selective
    recomputation and fused attention omit the term of the attention scores; full recomputation stores only the input,
    2 s b h (Korthikanti et al. 2022, equations 1 to 5). In fp32, values take twice as much and masks stay at one byte.
    Without dropout there are no masks. A gated MLP stores the outputs of its first two matrices and their product; the
    activation function is recomputed (Megatron-LM's fused SwiGLU). During its backward pass a layer also holds its
    recomputed activations and, without fused attention, the gradients of the scores before and after the softmax,
    4 s^2 b a/t.
    """
    model, tensor, value = job.model, job.tensor_parallel, job.value_bytes
    mask = 1.0 if model.has_dropout else 0.0
    replicated = model.hidden_size * (4 * value + 2 * mask)
    heads = value * (2 * model.attention_size + 2 * model.kv_size)
    if model.attention == "mla":
        heads += value * (model.q_lora_rank + model.kv_lora_rank + 3 * model.num_heads * model.rope_head_dim)
    if job.is_low_precision:
        # The inputs of the products are stored in 8 bits: of the residual stream, of the output and of the MLP.
        heads -= model.attention_size
    split = heads / tensor + _mlp_bytes(job)
    scores = model.num_heads * (2 * value + mask) * model.sequence_length
    if has_eager_kernels(job):
        # An eager RMSNorm stores its input in fp32 and its quotient; an eager SwiGLU also the output of the gate.
        replicated += 0.0 if job.has_fused_norms else _EAGER_NORMS * model.hidden_size
        split += value * model.ffn_size * model.experts_per_token / tensor
    linear = job.rank_tokens * (replicated / tensor if job.sequence_parallel else replicated) + job.rank_tokens * split
    quadratic, gradients = job.rank_tokens * scores / tensor, 0.0
    if job.has_flash_attention:
        quadratic = 0.0
    else:
        gradients = 2.0 * value * job.rank_tokens * model.num_heads * model.sequence_length / tensor
    share = job.recomputed_share
    if job.recompute == "full":
        inputs = job.rank_tokens * model.hidden_size * value / (tensor if job.sequence_parallel else 1)
        stored = 0.0 if job.has_checkpoints_on_cpu else inputs
        everything = linear + quadratic
        return share * stored + (1 - share) * everything, share * (everything - stored) + gradients
    if job.recompute == "operations":
        # Inputs of the layer's two halves, and the output of attention.
        saved = 2 * model.hidden_size / (tensor if job.sequence_parallel else 1) + model.attention_size / tensor
        halves = (model.attention_size + 2 * model.kv_size) / tensor + 2 * model.hidden_size
        halves += (model.mlp_matrices - 1) * model.ffn_size * model.experts_per_token / tensor
        # What is stored is a part of what the layer stores without recomputation.
        stored = min(job.rank_tokens * value * (saved + halves / 2), linear)
        everything = linear + quadratic
        return share * stored + (1 - share) * everything, share * (everything - stored) + gradients
    if job.recompute == "selective" and job.has_flash_attention:
        spared = job.rank_tokens * _spared_bytes(job)
        return linear - share * spared, share * spared
    if job.recompute == "selective":
        return linear + (1 - share) * quadratic, share * quadratic + gradients
    return linear + quadratic, gradients


def has_eager_kernels(job: Job) -> bool:
    """Return whether norms and activation function run as several kernels that store their intermediate values.

    LayerNorm and GELU, which models without a gated MLP have, are one kernel each even in eager PyTorch.
    """
    return job.model.is_gated and not job.fuses_pointwise and job.value_bytes == 2


def _spared_bytes(job: Job) -> float:
    """Return the bytes per token of the outputs of norms and activation functions, inputs of matrix products."""
    model, tensor = job.model, job.tensor_parallel
    value = 1 if job.is_low_precision else job.value_bytes
    norms = 2 * job.value_bytes * model.hidden_size / (tensor if job.sequence_parallel else 1)
    if model.attention == "mla":
        # Queries, keys and values are expanded again from their compressed form (DeepSeek-V3 report 2024, 3.2.3).
        norms += job.value_bytes * (3 * model.attention_size + model.num_heads * model.rope_head_dim) / tensor
    if job.recomputes_activation and model.is_gated:
        return norms
    shares = model.experts_per_token * job.busiest_share * job.expert_tensor_parallel
    routed = shares if model.num_experts > 1 else 1
    stored = 1 if job.has_8_bit_experts and model.num_experts > 1 else value
    return norms + model.ffn_size * (stored * routed + value * model.shared_experts) / tensor


def _mlp_bytes(job: Job) -> float:
    """Return the bytes that the MLP of a layer stores per token of the rank, split by tensor parallelism."""
    model, value = job.model, job.value_bytes
    width = model.mlp_matrices * value - (1.0 if job.is_low_precision else 0.0)
    if job.recomputes_activation and model.is_gated:
        width = float((model.mlp_matrices - 1) * value)
    if model.num_experts == 1:
        return width * model.ffn_size / job.tensor_parallel
    routed = model.experts_per_token * job.busiest_share * job.expert_tensor_parallel / job.tensor_parallel
    if job.has_8_bit_experts:
        own = width / value * model.ffn_size + model.hidden_size
        return routed * own + width * model.ffn_size * model.shared_experts / job.tensor_parallel
    # A routed token is stored as input of its experts, in 8 bits if their products are, and as their output.
    permuted = routed * ((1 if job.is_low_precision else value) + value) * model.hidden_size
    return width * model.ffn_size * (routed + model.shared_experts / job.tensor_parallel) + permuted


def state_bytes(job: Job, ranks: int | None = None) -> tuple[float, float, float]:
    """Return bytes per parameter on one rank for weights, gradients and optimizer, partitioned by the ZeRO stage.

    `ranks` is the number of ranks of the partition, by default all that share the weights. FSDP that keeps gathered
    weights until the end of the iteration holds all weights, and gradients in fp32 until they are reduced.
    """
    ranks = job.shards if ranks is None else ranks
    zero = job.zero_stage if ranks > 1 else 0
    value = float(job.value_bytes)
    gradient = float(job.gradient_bytes or job.value_bytes)
    optimizer = float(job.optimizer_bytes if job.optimizer_bytes is not None else (8 if value == 4 else 12))
    if zero >= 1:
        optimizer /= ranks
    if zero == 2 or (zero == 3 and job.reshards_after_forward):
        gradient /= ranks
    if zero == 3:
        value = value / ranks + (0.0 if job.reshards_after_forward else value)
    if job.zero_offload != "none":
        optimizer = 0.0
    if job.zero_offload == "all":
        value = 0.0
    return value, gradient, optimizer


def memory(job: Job, parameters: MemoryParameters, domain: int) -> Memory:
    """Return the memory of the stage that needs most; `domain` neighbouring devices have fast links among them.

    The first stage has the most micro batches in flight and the embedding, the second may have one more layer, the last
    has the logits. One of these three needs most.
    """
    return max(_stages(job, parameters, domain), key=_total)


def needed_bytes(job: Job, parameters: MemoryParameters, domain: int) -> float:
    """Return the total of `memory` without branching on the constants, for a fit."""
    return reduce(larger, map(_total, _stages(job, parameters, domain)))


def outside_bytes(job: Job, parameters: MemoryParameters, domain: int) -> float:
    """Return the bytes outside torch's allocator, which only the driver counts: device context and NCCL's buffers."""
    return parameters.overhead_bytes + _communicator_bytes(job, parameters, domain)


def _communicator_bytes(job: Job, parameters: MemoryParameters, domain: int) -> float:
    """Return the bytes of NCCL's buffers, which are in proportion to the channels of each group."""
    tensor, stages = job.tensor_parallel, job.pipeline_parallel
    groups = [
        (tensor, tensor),
        (stages, job.world_size),
        (job.replicas, tensor * job.replicas),
        (job.expert_parallel, job.expert_parallel * job.expert_tensor_parallel),
        # The norm of the gradients is reduced over all ranks of a replica.
        (stages if tensor > 1 else 1, job.world_size),
    ]
    shares = [_NETWORK_CHANNELS if span > domain else 1.0 for ranks, span in groups if ranks > 1]
    return sum(shares) * parameters.communicator_bytes


def _stages(job: Job, parameters: MemoryParameters, domain: int) -> list[Memory]:
    stages, activations = job.pipeline_parallel, activation_bytes(job)
    counted = sorted({stage for stage in (0, 1, stages - 1) if stage < stages})
    outside = _communicator_bytes(job, parameters, domain)
    return [_stage(job, parameters, stage, activations, outside) for stage in counted]


def _total(memory: Memory) -> float:
    return memory.total_bytes


def _stage(
    job: Job, parameters: MemoryParameters, stage: int, layer_bytes: tuple[float, float], communicators: float
) -> Memory:
    model, stages, tensor = job.model, job.pipeline_parallel, job.tensor_parallel
    is_last = stage == stages - 1
    layers = stage_layers(job, stage)
    dense, routed = _stage_parameters(job, stage, layers)
    if job.schedule == "dualpipe":
        # Both directions of the pipeline run on each rank, so that it has the weights of two stages.
        dense, routed = 2 * dense, 2 * routed
    weights, gradients, optimizer = (
        dense * of_dense + routed * of_routed
        for of_dense, of_routed in zip(
            state_bytes(job), state_bytes(job, min(job.shards, job.expert_replicas)), strict=True
        )
    )
    stored, transient = layer_bytes
    in_flight = micro_batches_in_flight(job, stage)
    zero = job.effective_zero
    layer = (dense + routed) / max(1, layers) if stages > 1 else layer_parameters(job)
    gathered = min(2, layers) * layer * job.value_bytes if zero == 3 and job.reshards_after_forward else 0.0
    flat = parameters.flat_factor if 1 <= zero < 3 else 1.0
    copies = (1.5 if job.value_bytes == 4 or job.copies_logits else 1) * (0.5 if job.fuses_loss else 1)
    copies = max(copies, _GATHERED_COPIES) if job.gathers_logits else copies
    vocabulary = model.vocab_size / (1 if job.gathers_logits else tensor)
    logits = job.rank_tokens * vocabulary * parameters.logit_bytes * copies if is_last else 0.0
    # A stage keeps each output until the gradient of this output arrives.
    boundary = tensor if job.sequence_parallel else 1
    outputs = job.value_bytes * job.rank_tokens * model.hidden_size * in_flight / boundary if stages > 1 else 0.0
    held = min(2.0, in_flight * layers) if job.offloads_activations else in_flight * layers
    masks = _embedding_bytes(job, stage, in_flight)
    fragments = (parameters.fragmentation - 1) * (_EXPANDABLE_SHARE if job.has_expandable_segments else 1)
    activations = (held * stored + outputs + transient + masks) * (1 + fragments)
    logits *= 1 + fragments
    gradient_copies, step = _gradient_copies(job, dense + routed)
    return Memory(
        weights * flat + gathered,
        gradients * flat,
        # Adam's fp32 gradients reuse the memory of the activations, which are freed before the step.
        optimizer * flat + larger(0.0, step - activations - logits),
        activations,
        logits,
        communicators + gradient_copies + _bucket_bytes(job, dense + routed, parameters),
        parameters.overhead_bytes,
        in_flight,
    )


def _embedding_bytes(job: Job, stage: int, in_flight: float) -> float:
    """Return the dropout masks of the embedding on the first stage, for all micro batches in flight.

    Recomputation of layers does not spare them (Korthikanti et al. 2022, section 4.3).
    """
    if stage > 0 or not job.model.has_dropout:
        return 0.0
    return job.rank_tokens * job.model.hidden_size * in_flight / (job.tensor_parallel if job.sequence_parallel else 1)


def layer_parameters(job: Job) -> float:
    """Return the parameters of one layer on a rank."""
    model = job.model
    routed = model.routed_layer_parameters / (job.expert_parallel * job.expert_tensor_parallel)
    if model.num_experts == 1:
        return model.layer_parameters / job.tensor_parallel
    return model.shared_layer_parameters / job.tensor_parallel + routed


def _stage_parameters(job: Job, stage: int, layers: int) -> tuple[float, float]:
    """Return the parameters of a rank of a stage: those that all data parallel ranks have, and those of its experts."""
    model, tensor = job.model, job.tensor_parallel
    ends = _end_parameters(job, stage)
    if model.num_experts == 1:
        return (layers * model.layer_parameters + ends) / tensor, 0.0
    dense_layers = min(layers, model.dense_layers) if stage == 0 else 0
    moe_layers = layers - dense_layers
    dense = dense_layers * model.dense_layer_parameters + moe_layers * model.shared_layer_parameters + ends
    routed = moe_layers * model.routed_layer_parameters / (job.expert_parallel * job.expert_tensor_parallel)
    return dense / tensor, routed


def _gradient_copies(job: Job, rank_parameters: float) -> tuple[float, float]:
    """Return bytes of gradient copies: those kept throughout, and those that exist only during the optimizer step.

    Adam takes fp32 gradients. In fp16 they are a copy of the gradients that stays allocated, 20 bytes per parameter in
    total (Megatron-LM, Distributed Optimizer: 20 bytes in fp16, 18 in bf16 with gradients in fp32): blocks of freed
    activations are too small for it. In bf16 the copy exists only during the step, and not at all if gradients are
    accumulated in fp32. ZeRO-1 and -2 keep it; ZeRO-1 also keeps its partition of the reduced gradients beside the full
    ones (DeepSpeed, stage_1_and_2.py).
    """
    zero = job.effective_zero
    if job.zero_offload != "none" or zero == 3:
        return 0.0, 0.0
    fp32_copy = 4.0 * rank_parameters if job.value_bytes == 2 and (job.gradient_bytes or 2) == 2 else 0.0
    if not zero:
        return (fp32_copy, 0.0) if job.precision == "fp16" else (0.0, fp32_copy)
    partition = job.value_bytes * rank_parameters if zero == 1 else 0.0
    return (fp32_copy + partition) / job.shards, 0.0


def _bucket_bytes(job: Job, rank_parameters: float, parameters: MemoryParameters) -> float:
    """Return the bytes of the buckets of ZeRO-1 and -2, one to reduce gradients and one to gather weights.

    A bucket holds at most all parameters of the rank.
    """
    if not 1 <= job.effective_zero < 3:
        return 0.0
    gradient = 4 if (job.gradient_bytes or job.value_bytes) >= 4 else 2
    return smaller(parameters.bucket_values, rank_parameters) * (gradient + job.value_bytes)


def layers_of_stage(layers: int, stages: int, stage: int) -> int:
    """Return the number of layers of a stage: as even a split as possible.

    If the number of stages divides layers + 2, the first and the last stage have one layer less, to compensate for
    embedding and logits (as in the models of BigScience and Qi et al.).
    """
    if stages > 1 and (layers + 2) % stages == 0:
        return (layers + 2) // stages - (stage in (0, stages - 1))
    base, extra = divmod(layers, stages)
    return base + (0 < stage <= extra)


def stage_layers(job: Job, stage: int) -> int:
    """Return the number of layers of a stage of a job.

    Stated sizes of the first and the last stage leave the other layers to the stages between them, rounded up.
    """
    layers, stages = job.model.num_layers, job.pipeline_parallel
    first, last = job.first_stage_layers, job.last_stage_layers
    if stages == 1 or (first is None and last is None):
        return layers_of_stage(layers, stages, stage)
    stated = {0: first} if first is not None else {}
    stated |= {stages - 1: last} if last is not None else {}
    own = stated.get(stage)
    if own is not None:
        return own
    others = stages - len(stated)
    rest = layers - sum(size or 0 for size in stated.values())
    return layers_of_stage(rest, others, min(stage, others - 1)) if others == 1 else -(-rest // others)


def _end_parameters(job: Job, stage: int) -> float:
    """Return parameters of the embedding on the first stage and of the output layer on the last one.

    A tied output layer is a copy of the embedding on the last stage.
    """
    model, stages = job.model, job.pipeline_parallel
    if stages == 1:
        return model.embedding_parameters + model.head_parameters
    if stage == 0:
        return model.embedding_parameters
    return float(model.hidden_size * model.vocab_size) if stage == stages - 1 else 0.0
