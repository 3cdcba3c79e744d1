"""Arithmetic of a GPT or BERT: parameters, FLOPs per iteration, and what share of a device's peak they are.

MFU counts the FLOPs that the model needs, HFU those that the hardware did: recomputed activations count in HFU only.

Sources, named by the functions: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters
Using Megatron-LM" (SC21); Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models".
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Recompute = Literal["none", "selective", "full"]


class Shape(NamedTuple):
    """Sizes of a transformer with an MLP of 4 * hidden_size, tied embeddings and learned positions."""

    num_layers: int
    hidden_size: int
    sequence_length: int
    vocab_size: int


class Peak(NamedTuple):
    """Dense FLOP/s of one device in one precision, and who says so."""

    flops_per_s: float
    source: str


_V100 = "NVIDIA Tesla V100 data sheet, 2020"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet, 2021, without sparsity"
_H100 = "NVIDIA H100 Tensor Core GPU data sheet, 2023, SXM, without sparsity"
_H100_PCIE = "NVIDIA H100 Tensor Core GPU data sheet, 2023, PCIe, without sparsity"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet, 2024, SXM, without sparsity"
_B200 = "NVIDIA Blackwell architecture brief, 2024, B200, without sparsity"
_T4 = "NVIDIA T4 data sheet, 2019"
_L4 = "NVIDIA L4 data sheet, 2023, without sparsity"
_MI250X = "AMD Instinct MI250X data sheet, 2021, both dies"
_MI300X = "AMD Instinct MI300X data sheet, 2023, without sparsity"

# (words that a device's name must hold, precision) -> peak. More words go first: "H100 PCIe" before "H100".
PEAKS: dict[tuple[str, str], Peak] = {
    ("v100 pcie", "fp16"): Peak(112e12, _V100),
    ("v100 pcie", "fp32"): Peak(14e12, _V100),
    ("v100", "fp16"): Peak(125e12, _V100),
    ("v100", "fp32"): Peak(15.7e12, _V100),
    ("a100", "fp16"): Peak(312e12, _A100),
    ("a100", "bf16"): Peak(312e12, _A100),
    ("a100", "tf32"): Peak(156e12, _A100),
    ("a100", "fp32"): Peak(19.5e12, _A100),
    ("h100 pcie", "fp8"): Peak(1513e12, _H100_PCIE),
    ("h100 pcie", "fp16"): Peak(756e12, _H100_PCIE),
    ("h100 pcie", "bf16"): Peak(756e12, _H100_PCIE),
    ("h100 pcie", "tf32"): Peak(378e12, _H100_PCIE),
    ("h100 pcie", "fp32"): Peak(51e12, _H100_PCIE),
    ("h100", "fp8"): Peak(1979e12, _H100),
    ("h100", "fp16"): Peak(989.4e12, _H100),
    ("h100", "bf16"): Peak(989.4e12, _H100),
    ("h100", "tf32"): Peak(494.7e12, _H100),
    ("h100", "fp32"): Peak(66.9e12, _H100),
    ("h200", "fp8"): Peak(1979e12, _H200),
    ("h200", "fp16"): Peak(989.4e12, _H200),
    ("h200", "bf16"): Peak(989.4e12, _H200),
    ("h200", "tf32"): Peak(494.7e12, _H200),
    ("h200", "fp32"): Peak(66.9e12, _H200),
    ("b200", "fp8"): Peak(4500e12, _B200),
    ("b200", "fp16"): Peak(2250e12, _B200),
    ("b200", "bf16"): Peak(2250e12, _B200),
    ("b200", "tf32"): Peak(1125e12, _B200),
    ("b200", "fp32"): Peak(75e12, _B200),
    ("t4", "fp16"): Peak(65e12, _T4),
    ("t4", "fp32"): Peak(8.1e12, _T4),
    ("l4", "fp8"): Peak(242e12, _L4),
    ("l4", "fp16"): Peak(121e12, _L4),
    ("l4", "bf16"): Peak(121e12, _L4),
    ("l4", "tf32"): Peak(60e12, _L4),
    ("l4", "fp32"): Peak(30.3e12, _L4),
    ("mi250x", "fp16"): Peak(383e12, _MI250X),
    ("mi250x", "bf16"): Peak(383e12, _MI250X),
    ("mi250x", "fp32"): Peak(95.7e12, _MI250X),
    ("mi300x", "fp8"): Peak(2614.9e12, _MI300X),
    ("mi300x", "fp16"): Peak(1307.4e12, _MI300X),
    ("mi300x", "bf16"): Peak(1307.4e12, _MI300X),
    ("mi300x", "tf32"): Peak(653.7e12, _MI300X),
    ("mi300x", "fp32"): Peak(163.4e12, _MI300X),
}


def peak_of(device: str, precision: str) -> Peak | None:
    """Look up the peak of a device by its name as the driver gives it ("NVIDIA A100-SXM4-40GB").

    None for a device or precision that is not in PEAKS: no peak is better than a wrong one.
    """
    words = set(device.lower().replace("-", " ").replace("_", " ").split())
    for (name, of_precision), peak in PEAKS.items():
        if of_precision == precision and set(name.split()) <= words:
            return peak
    return None


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
