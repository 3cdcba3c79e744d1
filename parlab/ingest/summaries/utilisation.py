"""FLOPs, MFU and HFU for the summary of a run. Pure.

`peak` is the peak FLOP/s of a device (a GPU, or on a CPU a rank): from its data sheet, or on a CPU measured with matrix
products on the node. MFU = model FLOPs / (devices x peak x step time); HFU also counts recomputation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from parlab.planner.job.hardware import Peak, peak_of
from parlab.planner.prediction.work import utilisation, work_of

DATA_SHEET, MEASURED, STATED = "data sheet", "measured", "stated"
PARTS = ("model_flops_per_iteration", "executed_flops_per_iteration", "tflops_per_gpu", "mfu", "hfu", "peak",
         "flops_formula")  # fmt: skip
"""Keys of a summary that this module computes."""


class Reference(NamedTuple):
    """The peak to which the FLOP/s of each device are compared."""

    peak: Peak
    kind: str
    """DATA_SHEET, MEASURED or STATED."""
    device: str = ""
    """Name of the GPU in the data sheet."""


def parts_of(
    summary: Mapping[str, Any], sections: Mapping[str, Mapping[str, Any]], devices: int | None, peak: Reference | None
) -> dict[str, Any]:
    """Compute FLOPs and utilization from the step time and sizes of a run; empty if one of them is unknown."""
    work = work_of(sections)
    seconds = _seconds(summary)
    if work is None or seconds is None or not devices:
        return {}
    if sections.get("train", {}).get("compute") == "emulated":
        return {}  # emulated stages only wait, so no device did this work
    utilization = utilisation(work, devices, seconds, peak.peak if peak else None)
    parts: dict[str, Any] = {
        "model_flops_per_iteration": work.model_flops,
        "executed_flops_per_iteration": work.executed_flops,
        "tflops_per_gpu": utilization.tflops_per_gpu,
        "mfu": utilization.mfu,
        "hfu": utilization.hfu,
        "flops_formula": work.formula,
    }
    if peak is not None:
        precision = sections["train"]["precision"]
        parts["peak"] = {
            "flops": peak.peak.flops_per_s,
            "precision": precision,
            "source": peak.peak.source,
            "kind": peak.kind,
            "device": peak.device,
        }
    return {name: value for name, value in parts.items() if value is not None}


def reference_of(
    resolved: Mapping[str, Mapping[str, Any]], environment: Mapping[str, Any], hardware: Mapping[str, Any]
) -> Reference | None:
    """Return the peak of the devices of a measured run in its precision.

    `environment` is that of the attempt at its start, `hardware` the current description of the node: a node measures
    its processor while it is idle, which may be after the start of the run.
    """
    precision = resolved.get("train", {}).get("precision")
    used = environment.get("gpus_used")
    if not isinstance(precision, str) or not isinstance(used, list):
        return None
    if used:
        name = used[0].get("name") if isinstance(used[0], dict) else None
        return by_data_sheet(str(name), precision)
    return _by_matmul(resolved, precision, environment.get("matmul") or hardware.get("matmul"))


def by_data_sheet(device: str, precision: str) -> Reference | None:
    """Return the peak of a GPU from the catalogue."""
    peak = peak_of(device, precision)
    return Reference(peak, DATA_SHEET, device) if peak else None


def _by_matmul(resolved: Mapping[str, Mapping[str, Any]], precision: str, measured: Any) -> Reference | None:
    """Divide the measured peak of the processor between the ranks, for as many threads as they use."""
    by_threads = _measured_flops(measured, precision)
    cluster, launcher = resolved.get("cluster", {}), resolved.get("launcher", {})
    ranks = int(cluster.get("gpus_per_node") or 0)
    if not by_threads or ranks < 1:
        return None
    used_threads = ranks * int(launcher.get("threads_per_rank") or 1)
    enough = [threads for threads in by_threads if threads >= used_threads]
    threads = min(enough) if enough else max(by_threads)
    # Two threads are never slower than one; if it was measured so, the machine was busy.
    flops = max(value for count, value in by_threads.items() if count <= threads)
    source = f"measured on this node: matrix products with {threads} thread{'s' if threads > 1 else ''}"
    shared = f", shared by {ranks} ranks" if ranks > 1 else ""
    return Reference(Peak(flops / ranks, f"{source}{shared}"), MEASURED)


def _measured_flops(measured: Any, precision: str) -> dict[int, float]:
    flops = measured.get("flops") if isinstance(measured, Mapping) else None
    by_threads = flops.get(precision) if isinstance(flops, Mapping) else None
    if not isinstance(by_threads, Mapping):
        return {}
    return {
        int(threads): float(value)
        for threads, value in by_threads.items()
        if str(threads).isdecimal() and isinstance(value, int | float) and 0 < value < 1e18
    }


def _seconds(summary: Mapping[str, Any]) -> float | None:
    times = summary.get("step_time_s")
    value = (times.get("median") or times.get("mean")) if isinstance(times, Mapping) else None
    return float(value) if isinstance(value, int | float) and value > 0 else None
