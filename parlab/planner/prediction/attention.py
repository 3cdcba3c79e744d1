"""The speed of fused attention kernels by their generation, the device and the sequence length.

Sources: Dao 2023 (FlashAttention-2), figures 4 and 5: causal, head size 128, forward and backward; generation 1 there
reaches 0.55 of generation 2 on an A100, which is assumed for an H100 too. Shah et al. 2024 (FlashAttention-3),
figures 5 and 6: causal, head size 128. NVIDIA's cuDNN kernels are of generation 3 from Hopper on.
"""

from __future__ import annotations

from parlab.planner.job.hardware import Gpu

SHARES: dict[str, tuple[float, float, float]] = {
    "V100": (0.45, 0.45, 0.45),
    "A100": (0.39, 0.71, 0.71),
    "A800": (0.39, 0.71, 0.71),
    "H100": (0.24, 0.42, 0.75),
    "H200": (0.24, 0.42, 0.75),
    "H800": (0.24, 0.42, 0.75),
    "GH200": (0.24, 0.42, 0.75),
    "B200": (0.13, 0.23, 0.62),
    "B300": (0.13, 0.23, 0.62),
    "GB200": (0.13, 0.23, 0.62),
    "GB300": (0.13, 0.23, 0.62),
    "H20": (0.60, 0.85, 0.90),
}
"""First word of a device name -> share of its ceiling of 16-bit products at long sequences, by generation of the
kernel. The published rates, divided by 271 TFLOP/s on an A100 and 794 on an H100."""
_OTHER = (0.25, 0.45, 0.60)
_HALF_LENGTH = 512
"""Sequence length at which a kernel reaches half of its rate (FlashAttention-2, figure 4)."""
_HEAD_LOSS = 12
"""Loss by small heads: a head size of 64 reaches 0.9 of the rate at 128 (FlashAttention-2, figure 4)."""
NEWEST = 3


def fused_share(device: Gpu, generation: int | None, length: float, head: float) -> float:
    """Return the share of the ceiling that fused attention reaches, forward and backward together; 1 on a processor.

    `length` is the sequence length, `head` the head size; only the scores that the mask leaves count.
    """
    if device.is_cpu:
        return 1.0
    published = SHARES.get(device.name.split()[0], _OTHER)[(generation or NEWEST) - 1]
    share = device.attention_share or published
    head_share = min(1.0, (128 + _HEAD_LOSS) / 128 * head / (head + _HEAD_LOSS))
    return share * head_share * length / (length + _HALF_LENGTH)
