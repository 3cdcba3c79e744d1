"""Device utilisation in the summary of a run: computed by parlab, or stated by the imported file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from parlab.charts.format import quantity


def compute(summary: Mapping[str, Any]) -> float | None:
    """Return the achieved FLOP/s per device; None if not available."""
    tera = _finite_number(summary.get("tflops_per_gpu"))
    return None if tera is None else tera * 1e12


def share_pct(summary: Mapping[str, Any], name: str) -> float | None:
    """Return "mfu", "hfu" or "gpu_util" in percent, as computed by parlab, else as stated by the file."""
    computed = measured_pct(summary, name)
    return computed if computed is not None else _finite_number(summary.get(f"{name}_pct"))


def measured_pct(summary: Mapping[str, Any], name: str) -> float | None:
    """Return a share in percent as computed by parlab; "gpu_util" is the mean of all GPUs over the timed steps."""
    if name == "gpu_util":
        return _finite_number(_part(summary, "gpu_utilization").get("mean"))
    share = _finite_number(summary.get(name))
    return None if share is None else 100 * share


def peak_text(summary: Mapping[str, Any]) -> str:
    """Describe the peak of MFU: `312 TFLOP/s in bf16 (A100 SXM4 40 GB, NVIDIA ... data sheet)`; empty if unknown."""
    peak = _part(summary, "peak")
    flops = _finite_number(peak.get("flops"))
    if flops is None:
        return ""
    return f"{quantity(flops, 'FLOP/s')} in {peak.get('precision')} ({peak.get('source')})"


def _part(summary: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = summary.get(name)
    return part if isinstance(part, Mapping) else {}


def _finite_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
