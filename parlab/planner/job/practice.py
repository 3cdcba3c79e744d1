"""What frameworks usually overlap and record on a device, where a question or a row does not state it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .hardware import Gpu
from .workload import Dispatcher, Job, Precision

_RECENT = ("H100", "H200", "H800", "H20", "GH200", "B200", "B300", "GB", "MI3")


def is_recent_device(gpu: str) -> bool:
    """Return whether a device is of NVIDIA's Hopper, of AMD's MI300 or later."""
    return gpu.startswith(_RECENT)


_DISPATCHERS: dict[str, Dispatcher] = {
    "NeMo AutoModel": "deepep",
    "torchtitan": "alltoall",
    "MaxText": "alltoall",
    "Primus": "alltoall",
    "DeepSpeed": "alltoall",
    "Megatron-LM": "alltoall",
}
"""Code base -> what its recipes send tokens with, if that is the same on every device."""


@dataclass(frozen=True)
class Practice:
    """Usual settings of a training."""

    is_recent: bool
    """Hopper and later: fused attention, sequence parallelism, distributed optimizer, overlapping gradients."""
    overlaps_gradients: bool
    overlaps_tensor: bool
    overlaps_experts: bool
    overlaps_pipeline: bool
    has_cuda_graphs: bool
    dispatcher: Dispatcher


def practice(gpu: str, precision: Precision, chunks: int, *, framework: str = "", is_fsdp: bool = False) -> Practice:
    """Return the usual settings on a device.

    NVIDIA's frameworks overlap tensor parallel messages in their recipes for 8 bits, and the all-to-all of experts in
    interleaved pipelines; their recipes for racks with Grace processors record CUDA graphs.
    """
    is_recent = is_recent_device(gpu)
    is_low_precision = precision in ("fp8", "mxfp8", "nvfp4")
    is_nvidia = is_recent and not is_fsdp and (is_low_precision or framework == "Megatron-Bridge")
    return Practice(
        is_recent=is_recent,
        overlaps_gradients=is_recent or is_fsdp,
        overlaps_tensor=is_nvidia,
        overlaps_experts=is_nvidia and chunks > 1,
        overlaps_pipeline=is_recent,
        has_cuda_graphs=is_nvidia and gpu.startswith("GB"),
        dispatcher=_DISPATCHERS.get(framework) or _dispatcher(gpu),
    )


def _dispatcher(gpu: str) -> Dispatcher:
    """Return what usually sends tokens: Hybrid-EP in racks, DeepEP on NVIDIA's devices since Hopper."""
    if gpu.startswith("GB"):
        return "hybridep"
    return "deepep" if is_recent_device(gpu) and not gpu.startswith("MI") else "alltoall"


def in_units_of(job: Job, gpu: Gpu) -> Job:
    """Return a job in a precision that a device has units for: bf16 instead of 8 or 4 bits that it lacks.

    The scales of MXFP8 came with the units for 4 bits; a device with plain 8 bits trains in these.
    """
    if not job.is_low_precision or (gpu.peak(job.precision) and (job.precision != "mxfp8" or "fp4" in gpu.peak_flops)):
        return job
    return replace(job, precision="fp8" if job.precision == "mxfp8" and gpu.peak("fp8") else "bf16")
