"""Arithmetic of a GPT or BERT: parameters, FLOPs per iteration, and what share of a device's peak they are.

MFU counts the FLOPs that the model needs, HFU those that the hardware did: recomputed activations count in HFU only.

Sources, named by the functions: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters
Using Megatron-LM" (SC21); Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models".
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from parlab.planner.hardware import Peak

Recompute = Literal["none", "selective", "full"]


class Shape(NamedTuple):
    """Sizes of a transformer with an MLP of 4 * hidden_size, tied embeddings and learned positions."""

    num_layers: int
    hidden_size: int
    sequence_length: int
    vocab_size: int


def parameters(shape: Shape) -> float:
    """Count parameters: P = 12 l h^2 (1 + 13/(12 h) + (V + s)/(12 l h)).

    Source: Narayanan et al. 2021, equation 2. Gated MLPs, grouped queries and untied embeddings are not in it.
    """
    layers, hidden, sequence, vocabulary = shape
    return 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (vocabulary + sequence) / (12 * layers * hidden))


def model_flops(shape: Shape, global_batch_size: float) -> float:
    """FLOPs that one iteration needs, forward and backward: 72 B s l h^2 (1 + s/(6 h) + V/(12 l h)).

    This is what MFU counts. `global_batch_size` is in sequences. Source: Narayanan et al. 2021, section 5.1 (equation 3
    there is the sum with full recompute; its forward and backward terms alone, a factor of 3 instead of 4).
    """
    layers, hidden, sequence, vocabulary = shape
    per_sequence = 72 * sequence * layers * hidden**2
    return global_batch_size * per_sequence * (1 + sequence / (6 * hidden) + vocabulary / (12 * layers * hidden))


def executed_flops(shape: Shape, global_batch_size: float, recompute: Recompute) -> float:
    """FLOPs that the hardware does in one iteration; this is what HFU counts.

    - none: the same as model_flops;
    - selective: plus one forward of the attention core, 4 B s^2 l h (Korthikanti et al. 2022, section 5);
    - full: 96 B s l h^2 (1 + s/(6 h) + V/(16 l h)) (Narayanan et al. 2021, equation 3): all layers run forward again,
      the logits do not.
    """
    layers, hidden, sequence, vocabulary = shape
    if recompute == "full":
        per_sequence = 96 * sequence * layers * hidden**2
        return global_batch_size * per_sequence * (1 + sequence / (6 * hidden) + vocabulary / (16 * layers * hidden))
    needed = model_flops(shape, global_batch_size)
    return needed + 4 * global_batch_size * sequence**2 * layers * hidden if recompute == "selective" else needed


def flops_per_gpu(flops: float, gpus: int, step_time_s: float) -> float:
    """FLOP/s of each GPU for the FLOPs of one iteration. Raises ValueError for no GPUs or no time."""
    if gpus < 1:
        raise ValueError(f"gpus {gpus} cannot share work; use 1 or more")
    if not step_time_s > 0:
        raise ValueError(f"step_time_s {step_time_s} is no duration; use the seconds of one iteration")
    return flops / (gpus * step_time_s)


def mfu(shape: Shape, global_batch_size: float, gpus: int, step_time_s: float, peak: Peak) -> float:
    """Model FLOPs utilisation, 0 to 1: model FLOPs / (GPUs * peak * time). Source: Korthikanti et al. 2022, 6."""
    return flops_per_gpu(model_flops(shape, global_batch_size), gpus, step_time_s) / peak.flops_per_s


def hfu(
    shape: Shape, global_batch_size: float, gpus: int, step_time_s: float, peak: Peak, recompute: Recompute
) -> float:
    """Hardware FLOPs utilisation, 0 to 1; recomputed activations count. Source: Korthikanti et al. 2022, 6."""
    return flops_per_gpu(executed_flops(shape, global_batch_size, recompute), gpus, step_time_s) / peak.flops_per_s


def training_time_s(
    tokens: float, parameters: float, gpus: int, flops_per_s_per_gpu: float, recompute: Recompute
) -> float:
    """Seconds to train: 8 T P / (n X) with full recompute (Narayanan et al. 2021, equation 4), 6 T P / (n X) without.

    Short form: attention and logits are left out, 1 to 3 % of the time at usual sizes.
    """
    factor = 8 if recompute == "full" else 6
    return flops_per_gpu(factor * tokens * parameters, gpus, 1.0) / flops_per_s_per_gpu
