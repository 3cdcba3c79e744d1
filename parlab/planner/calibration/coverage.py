"""Warn about inputs outside the range of the measurements that the planner was validated on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from parlab.planner.job.hardware import Gpu
from parlab.planner.job.workload import Job


class Range(NamedTuple):
    """Range of one quantity in the published measurements."""

    title: str
    low: float
    high: float
    unit: str


# Extremes of the rows that `make bench-planner` evaluates.
_COVERED = {
    "parameters": Range("Parameters", 0.066e9, 1.03e12, ""),
    "sequence": Range("Sequence length", 512, 131_072, "tokens"),
    "hidden": Range("Width", 768, 25_600, ""),
    "gpus": Range("GPUs", 1, 16_384, ""),
    "micro_batch": Range("Micro batch", 1, 128, "sequences"),
    "tensor_parallel": Range("Tensor parallel size", 1, 16, ""),
    "pipeline_parallel": Range("Pipeline stages", 1, 64, ""),
}
_COVERED_WITH_EXPERTS = ("H100", "B200", "B300", "GB200", "GB300")
_COVERED_DEVICES = ("V100", "A100", "H100", "B200", "B300", "GB200", "GB300")


def warnings(job: Job, gpu: Gpu) -> Iterator[str]:
    """Generate a warning for each input outside the range in which the planner was validated."""
    values = {
        "parameters": job.model.parameters,
        "sequence": job.model.sequence_length,
        "hidden": job.model.hidden_size,
        "gpus": job.world_size,
        "micro_batch": job.micro_batch_size,
        "tensor_parallel": job.tensor_parallel,
        "pipeline_parallel": job.pipeline_parallel,
    }
    for name, value in values.items():
        covered = _COVERED[name]
        if not covered.low <= value <= covered.high:
            unit = f" {covered.unit}" if covered.unit else ""
            yield (
                f"{covered.title} {_size_text(value)} is outside the range of the measurements used for validation"
                f" ({_size_text(covered.low)} to {_size_text(covered.high)}{unit}); the prediction is an extrapolation."
            )
    parts, layers = job.pipeline_parallel * job.chunks, job.model.num_layers
    if job.chunks > 1 and layers % parts:
        yield f"{layers} layers do not divide into {parts} chunks; the prediction treats the chunks as equal."
    if not gpu.name.startswith(_COVERED_DEVICES):
        yield (
            f"The planner was not validated on {gpu.name} (only on {', '.join(_COVERED_DEVICES)}); the prediction"
            " relies on its data sheet."
        )
    if job.model.num_experts > 1 and not gpu.name.startswith(_COVERED_WITH_EXPERTS):
        yield f"The planner was not validated on models with experts on {gpu.name}."


def _size_text(value: float) -> str:
    return f"{value:,.0f}" if value < 1e7 else f"{value:.3g}"
