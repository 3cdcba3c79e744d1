"""Bytes on the fullest GPU of a job, part by part.

Sources: Rajbhandari et al. 2020 (ZeRO) for states, Korthikanti et al. 2022 for activations, Qi et al. 2023 and
Narayanan et al. 2021 for the micro batches that a stage holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from .parameters import MemoryParameters
from .workload import Job


@dataclass(frozen=True)
class Memory:
    """Bytes of the fullest GPU, in parts that add up to `total_bytes`."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    logits_bytes: float
    buffers_bytes: float
    overhead_bytes: float
    in_flight: float
    """Micro batches whose activations the fullest stage holds."""

    @property
    def total_bytes(self) -> float:
        """All parts."""
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
    """Micro batches whose activations a stage holds at most, counted in whole stages.

    Stage r of p, m micro batches: GPipe m; 1F1B p - r; interleaved ((v + 1) p - 2 r - 1)/v; ZB-H1 and ZB-V p on each;
    ZB-H2 2p - 1; never more than m (Narayanan et al. 2021, section 2.2; Qi et al. 2023, sections 2.3 and 2.4).
    """
    stages, micro_batches, chunks = job.pipeline_parallel, job.num_micro_batches, job.virtual_stages
    held = {
        "gpipe": micro_batches,
        "1f1b": stages - stage,
        "interleaved-1f1b": ((chunks + 1) * stages - 2 * stage - 1) / chunks,
        "zb-h1": stages,
        "zb-h2": 2 * stages - 1,
        "zb-v": stages,
    }[job.schedule]
    return float(min(held if stages > 1 else 1, micro_batches))


def activation_bytes(job: Job) -> tuple[float, float]:
    """Bytes that one layer keeps of one micro batch until its backward pass, and those it needs while that works.

    In 16 bits: s b h (10 + 24/t + 5 a s/(h t)), all divided by t with sequence parallelism; selective recompute and
    fused attention drop the term of the scores; full recompute keeps the input, 2 s b h (Korthikanti et al. 2022,
    equations 1 to 5). In fp32 values take twice as much, masks stay one byte. What is computed again is there while
    the layer goes backward, and where attention has scores their gradients before and after the softmax, 4 s^2 b a/t.
    """
    model, tensor = job.model, job.tensor_parallel
    base = float(job.micro_batch_size * model.sequence_length * model.hidden_size)
    widening = model.ffn_size * (model.mlp_matrices - 1) * model.experts_per_token / (4 * model.hidden_size)
    kv_share = (1 + 2 * model.kv_size / model.hidden_size) / 3
    wide = job.value_bytes == 4
    split = (2 + 6 * kv_share if not wide else 4 + 12 * kv_share) + (16 if not wide else 32) * widening
    whole = 10 if not wide else 18
    scores = (9 if wide else 5) * model.num_heads * model.sequence_length / model.hidden_size
    kept_whole = whole / tensor if job.sequence_parallel else whole
    linear, quadratic = base * (kept_whole + split / tensor), base * scores / tensor
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
    """Bytes per parameter of one rank: weights, gradients, optimizer; ZeRO's shares counted."""
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
    """Bytes on the fullest GPU of all stages.

    The first stage holds most micro batches and the embedding, the second one may have a layer more, the last one the
    logits: one of them is the fullest.
    """
    stages = job.pipeline_parallel
    return max((_stage(job, parameters, stage) for stage in {0, 1, stages - 1} if stage < stages), key=_total)


def _total(memory: Memory) -> float:
    return memory.total_bytes


def _stage(job: Job, parameters: MemoryParameters, stage: int) -> Memory:
    model, stages, tensor = job.model, job.pipeline_parallel, job.tensor_parallel
    is_last = stage == stages - 1
    layers = layers_of_stage(model.num_layers, stages, stage)
    own = (layers * model.layer_parameters + _end_parameters(job, stage)) / tensor
    weights, gradients, optimizer = state_bytes(job)
    kept, working = activation_bytes(job)
    in_flight = micro_batches_in_flight(job, stage)
    gathered = 2 * model.layer_parameters / tensor * job.value_bytes if job.zero_stage == 3 else 0.0
    flat = parameters.flat_factor if 1 <= job.zero_stage < 3 else 1.0
    tokens = job.micro_batch_size * model.sequence_length
    logit_bytes = parameters.logit_bytes * (1.5 if job.value_bytes == 4 else 1)
    logits = tokens * model.vocab_size / tensor * logit_bytes if is_last else 0.0
    # A stage keeps what it handed on until the gradient of it comes back.
    outputs = job.value_bytes * tokens * model.hidden_size * in_flight if stages > 1 else 0.0
    groups = sum(size > 1 for size in (tensor, stages, job.data_parallel))
    activations = (in_flight * layers * kept + outputs + working) * parameters.fragmentation
    logits *= parameters.fragmentation
    copies, step = _gradient_copies(job, own)
    return Memory(
        own * weights * flat + gathered,
        own * gradients * flat,
        # Adam's fp32 gradients take the room of the activations, which are gone by then.
        own * optimizer * flat + max(0.0, step - activations - logits),
        activations,
        logits,
        groups * parameters.communicator_bytes + copies + _bucket_bytes(job, own, parameters),
        parameters.overhead_bytes,
        in_flight,
    )


def _gradient_copies(job: Job, own: float) -> tuple[float, float]:
    """Bytes of gradients that are kept twice, and of those that only the step of the optimizer makes.

    Adam takes fp32 gradients: a trainer in 16 bits copies them at each step, unless it accumulates in fp32 anyway.
    ZeRO-1 and -2 keep that copy, and ZeRO-1 its partition of the reduced gradients beside all others (DeepSpeed,
    stage_1_and_2.py).
    """
    if job.zero_offload != "none" or job.zero_stage == 3:
        return 0.0, 0.0
    wide = 4.0 * own if job.value_bytes == 2 and (job.gradient_bytes or 2) == 2 else 0.0
    if not job.zero_stage:
        return 0.0, wide
    partition = job.value_bytes * own if job.zero_stage == 1 else 0.0
    return (wide + partition) / job.data_parallel, 0.0


def _bucket_bytes(job: Job, own: float, parameters: MemoryParameters) -> float:
    """Bytes of the buckets of ZeRO-1 and -2: one to reduce gradients, one to gather weights, none above the weights."""
    if not 1 <= job.zero_stage < 3:
        return 0.0
    gradient = 4 if (job.gradient_bytes or job.value_bytes) >= 4 else 2
    return min(parameters.bucket_values, own) * (gradient + job.value_bytes)


def layers_of_stage(layers: int, stages: int, stage: int) -> int:
    """Layers of a stage: as even as can be.

    Where layers + 2 divides by the stages, first and last stage have one layer less, to make room for embedding and
    logits (BigScience's and Qi et al.'s models are made so).
    """
    if stages > 1 and (layers + 2) % stages == 0:
        return (layers + 2) // stages - (stage in (0, stages - 1))
    most, extra = divmod(layers, stages)
    return most + (0 < stage <= extra)


def _end_parameters(job: Job, stage: int) -> float:
    """Embedding on the first stage, the output layer on the last one: a copy of the embedding where it is tied."""
    model, stages = job.model, job.pipeline_parallel
    if stages == 1:
        return model.embedding_parameters + model.head_parameters
    if stage == 0:
        return model.embedding_parameters
    return float(model.hidden_size * model.vocab_size) if stage == stages - 1 else 0.0
