"""How much of its devices a run uses, as its summary says: computed here, or stated by its file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from parlab.charts.format import quantity


def compute(summary: Mapping[str, Any]) -> float | None:
    """Read the FLOP/s of each device."""
    tera = _number(summary.get("tflops_per_gpu"))
    return None if tera is None else tera * 1e12


def share_pct(summary: Mapping[str, Any], name: str) -> float | None:
    """Read a share in per cent, "mfu", "hfu" or "gpu_util": as it was computed here, else as a file states it."""
    ours = measured_pct(summary, name)
    return ours if ours is not None else _number(summary.get(f"{name}_pct"))


def measured_pct(summary: Mapping[str, Any], name: str) -> float | None:
    """Read a share in per cent as it was computed here; the utilisation of GPUs is their mean over the timed steps."""
    if name == "gpu_util":
        return _number(_part(summary, "gpu_utilization").get("mean"))
    ours = _number(summary.get(name))
    return None if ours is None else 100 * ours


def peak_words(summary: Mapping[str, Any]) -> str:
    """Name what MFU divides by: `312 TFLOP/s in bf16 (A100 SXM4 40 GB, NVIDIA ... data sheet)`; empty without one."""
    peak = _part(summary, "peak")
    flops = _number(peak.get("flops"))
    if flops is None:
        return ""
    return f"{quantity(flops, 'FLOP/s')} in {peak.get('precision')} ({peak.get('source')})"


def _part(summary: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = summary.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
