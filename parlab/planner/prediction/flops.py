"""Count parameters and FLOPs of a GPT or BERT, and the share of a device's peak.

MFU counts the FLOPs that the model needs; HFU counts all FLOPs that the hardware executes, recomputed activations
included.

Sources, cited by the functions: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters
Using Megatron-LM" (SC21); Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models".
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from parlab.planner.job.hardware import Peak

Recompute = Literal["none", "selective", "full"]


class Shape(NamedTuple):
    """Sizes of a transformer with an MLP of 4 * hidden_size, tied embeddings and learned positions."""

    num_layers: int
    hidden_size: int
    sequence_length: int
    vocab_size: int


def parameters(shape: Shape) -> float:
    """Return the number of parameters, P = 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)).

    Source: Narayanan et al. 2021, equation 2. It does not cover gated MLPs, grouped queries and untied embeddings.
    """
    layers, hidden, sequence, vocabulary = shape
    return 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (vocabulary + sequence) / (12 * layers * hidden))


def model_flops(shape: Shape, global_batch_size: float) -> float:
    """Return the FLOPs that one iteration needs, forward and backward: 72 B s l h^2 (1 + s/(6 h) + V/(12 l h)).

    MFU is based on this count. `global_batch_size` is in sequences. Source: Narayanan et al. 2021, section 5.1;
    equation 3 there includes full recomputation, and without it its factor of 4 becomes 3.
    """
    layers, hidden, sequence, vocabulary = shape
    per_sequence = 72 * sequence * layers * hidden**2
    return global_batch_size * per_sequence * (1 + sequence / (6 * hidden) + vocabulary / (12 * layers * hidden))


def executed_flops(shape: Shape, global_batch_size: float, recompute: Recompute) -> float:
    """Return the FLOPs that the hardware executes in one iteration. HFU is based on this count.

    - none: the same as model_flops;
    - selective: plus one forward pass of the attention core, 4 B s^2 l h (Korthikanti et al. 2022, section 5);
    - full: 96 B s l h^2 (1 + s/(6 h) + V/(16 l h)) (Narayanan et al. 2021, equation 3): all layers run forward again,
      the logits are not recomputed.
    """
    layers, hidden, sequence, vocabulary = shape
    if recompute == "full":
        per_sequence = 96 * sequence * layers * hidden**2
        return global_batch_size * per_sequence * (1 + sequence / (6 * hidden) + vocabulary / (16 * layers * hidden))
    needed = model_flops(shape, global_batch_size)
    return needed + 4 * global_batch_size * sequence**2 * layers * hidden if recompute == "selective" else needed


def flops_per_gpu(flops: float, gpus: int, step_time_s: float) -> float:
    """Return FLOP/s per GPU for the FLOPs of one iteration. Raises ValueError unless both divisors are positive."""
    if gpus < 1:
        raise ValueError(f"gpus {gpus} is out of range; use 1 or more")
    if not step_time_s > 0:
        raise ValueError(f"step_time_s {step_time_s} is out of range; use the seconds of one iteration, more than 0")
    return flops / (gpus * step_time_s)


def mfu(shape: Shape, global_batch_size: float, gpus: int, step_time_s: float, peak: Peak) -> float:
    """Return model FLOPs utilisation (0 to 1): model FLOPs / (GPUs * peak * time). Korthikanti et al. 2022, 6."""
    return flops_per_gpu(model_flops(shape, global_batch_size), gpus, step_time_s) / peak.flops_per_s


def hfu(
    shape: Shape, global_batch_size: float, gpus: int, step_time_s: float, peak: Peak, recompute: Recompute
) -> float:
    """Return hardware FLOPs utilisation (0 to 1), with recomputed activations. Korthikanti et al. 2022, 6."""
    return flops_per_gpu(executed_flops(shape, global_batch_size, recompute), gpus, step_time_s) / peak.flops_per_s
