"""Predict the memory of the GPU that needs most, part by part.

Sources: Rajbhandari et al. 2020 (ZeRO) for model states, Korthikanti et al. 2022 for activations, Qi et al. 2023 and
Narayanan et al. 2021 for the micro batches in flight on a stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from .parameters import MemoryParameters
from .workload import Job


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

    For stage r of p, m micro batches and v chunks: GPipe m; 1F1B p - r; interleaved 1F1B ((v + 1) p - 2 r - 1)/v; ZB-H1
    and ZB-V p; ZB-H2 2p - 1; at most m (Narayanan et al. 2021, section 2.2; Qi et al. 2023, sections 2.3 and 2.4).
    """
    stages, micro_batches, chunks = job.pipeline_parallel, job.num_micro_batches, job.virtual_stages
    in_flight = {
        "gpipe": micro_batches,
        "1f1b": stages - stage,
        "interleaved-1f1b": ((chunks + 1) * stages - 2 * stage - 1) / chunks,
        "zb-h1": stages,
        "zb-h2": 2 * stages - 1,
        "zb-v": stages,
    }[job.schedule]
    return float(min(in_flight if stages > 1 else 1, micro_batches))


def activation_bytes(job: Job) -> tuple[float, float]:
    """Return the activation bytes of one layer and micro batch: stored until the backward pass, and needed during it.

    In 16 bits a layer stores s b h (10 + 24/t + 5 a s/(h t)), all divided by t with sequence parallelism. Selective
    recomputation and fused attention omit the term of the attention scores; full recomputation stores only the input,
    2 s b h (Korthikanti et al. 2022, equations 1 to 5). In fp32, values take twice as much and masks stay at one byte.
    During its backward pass a layer also holds its recomputed activations and, without fused attention, the gradients
    of the scores before and after the softmax, 4 s^2 b a/t.
    """
    model, tensor = job.model, job.tensor_parallel
    base = float(job.micro_batch_size * model.sequence_length * model.hidden_size)
    widening = model.ffn_size * (model.mlp_matrices - 1) * model.experts_per_token / (4 * model.hidden_size)
    kv_share = (1 + 2 * model.kv_size / model.hidden_size) / 3
    is_fp32 = job.value_bytes == 4
    split = (2 + 6 * kv_share if not is_fp32 else 4 + 12 * kv_share) + (16 if not is_fp32 else 32) * widening
    replicated = 10 if not is_fp32 else 18
    scores = (9 if is_fp32 else 5) * model.num_heads * model.sequence_length / model.hidden_size
    replicated_share = replicated / tensor if job.sequence_parallel else replicated
    linear, quadratic = base * (replicated_share + split / tensor), base * scores / tensor
    if job.has_flash_attention:
        quadratic = gradients = 0.0
    else:
        gradients = 2.0 * job.value_bytes * job.micro_batch_size * model.num_heads * model.sequence_length**2 / tensor
    if job.recompute == "full":
        inputs = base * job.value_bytes / (tensor if job.sequence_parallel else 1)
        return 0.0 if job.has_checkpoints_on_cpu else inputs, linear + quadratic + gradients
    if job.recompute == "selective":
        return linear, quadratic + gradients
    return linear + quadratic, gradients


def state_bytes(job: Job) -> tuple[float, float, float]:
    """Return bytes per parameter on one rank for weights, gradients and optimizer, partitioned by the ZeRO stage."""
    ranks = job.data_parallel
    value = float(job.value_bytes)
    gradient = float(job.gradient_bytes or job.value_bytes)
    optimizer = float(job.optimizer_bytes if job.optimizer_bytes is not None else (8 if value == 4 else 12))
    if job.zero_stage >= 1:
        optimizer /= ranks
    if job.zero_stage >= 2:
        gradient /= ranks
    if job.zero_stage >= 3:
        value /= ranks
    if job.zero_offload != "none":
        optimizer = 0.0
    if job.zero_offload == "all":
        value = 0.0
    return value, gradient, optimizer


def memory(job: Job, parameters: MemoryParameters) -> Memory:
    """Return the memory of the stage that needs most.

    The first stage has the most micro batches in flight and the embedding, the second may have one more layer, the last
    has the logits. One of these three needs most.
    """
    stages = job.pipeline_parallel
    return max((_stage(job, parameters, stage) for stage in {0, 1, stages - 1} if stage < stages), key=_total)


def _total(memory: Memory) -> float:
    return memory.total_bytes


def _stage(job: Job, parameters: MemoryParameters, stage: int) -> Memory:
    model, stages, tensor = job.model, job.pipeline_parallel, job.tensor_parallel
    is_last = stage == stages - 1
    layers = layers_of_stage(model.num_layers, stages, stage)
    rank_parameters = (layers * model.layer_parameters + _end_parameters(job, stage)) / tensor
    weights, gradients, optimizer = state_bytes(job)
    stored, transient = activation_bytes(job)
    in_flight = micro_batches_in_flight(job, stage)
    gathered = 2 * model.layer_parameters / tensor * job.value_bytes if job.zero_stage == 3 else 0.0
    flat = parameters.flat_factor if 1 <= job.zero_stage < 3 else 1.0
    tokens = job.micro_batch_size * model.sequence_length
    logit_bytes = parameters.logit_bytes * (1.5 if job.value_bytes == 4 else 1)
    logits = tokens * model.vocab_size / tensor * logit_bytes if is_last else 0.0
    # A stage keeps each output until the gradient of this output arrives.
    outputs = job.value_bytes * tokens * model.hidden_size * in_flight if stages > 1 else 0.0
    groups = sum(size > 1 for size in (tensor, stages, job.data_parallel))
    activations = (in_flight * layers * stored + outputs + transient) * parameters.fragmentation
    logits *= parameters.fragmentation
    copies, step = _gradient_copies(job, rank_parameters)
    return Memory(
        rank_parameters * weights * flat + gathered,
        rank_parameters * gradients * flat,
        # Adam's fp32 gradients reuse the memory of the activations, which are freed before the step.
        rank_parameters * optimizer * flat + max(0.0, step - activations - logits),
        activations,
        logits,
        groups * parameters.communicator_bytes + copies + _bucket_bytes(job, rank_parameters, parameters),
        parameters.overhead_bytes,
        in_flight,
    )


def _gradient_copies(job: Job, rank_parameters: float) -> tuple[float, float]:
    """Return bytes of gradient copies: those kept throughout, and those that exist only during the optimizer step.

    Adam takes fp32 gradients, so 16-bit training copies them at each step unless it accumulates in fp32. ZeRO-1 and -2
    keep this copy; ZeRO-1 also keeps its partition of the reduced gradients beside the full ones (DeepSpeed,
    stage_1_and_2.py).
    """
    if job.zero_offload != "none" or job.zero_stage == 3:
        return 0.0, 0.0
    fp32_copy = 4.0 * rank_parameters if job.value_bytes == 2 and (job.gradient_bytes or 2) == 2 else 0.0
    if not job.zero_stage:
        return 0.0, fp32_copy
    partition = job.value_bytes * rank_parameters if job.zero_stage == 1 else 0.0
    return (fp32_copy + partition) / job.data_parallel, 0.0


def _bucket_bytes(job: Job, rank_parameters: float, parameters: MemoryParameters) -> float:
    """Return the bytes of the buckets of ZeRO-1 and -2, one to reduce gradients and one to gather weights.

    A bucket holds at most all parameters of the rank.
    """
    if not 1 <= job.zero_stage < 3:
        return 0.0
    gradient = 4 if (job.gradient_bytes or job.value_bytes) >= 4 else 2
    return min(parameters.bucket_values, rank_parameters) * (gradient + job.value_bytes)


def layers_of_stage(layers: int, stages: int, stage: int) -> int:
    """Return the number of layers of a stage: as even a split as possible.

    If the number of stages divides layers + 2, the first and the last stage have one layer less, to compensate for
    embedding and logits (as in the models of BigScience and Qi et al.).
    """
    if stages > 1 and (layers + 2) % stages == 0:
        return (layers + 2) // stages - (stage in (0, stages - 1))
    base, extra = divmod(layers, stages)
    return base + (0 < stage <= extra)


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
