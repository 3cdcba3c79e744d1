"""The points of a sweep, their metrics, and its runs as plain data for the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.format import field_value
from parlab.charts.points import MemoryBound, Roof, RunPoint, Timer
from parlab.charts.repeats import grouped
from parlab.lab.models import Run
from parlab.lab.selectors.runs import step_time
from parlab.planner.job.hardware import find
from parlab.reports.pivot import PRINTED
from runners.config import Point, digest
from runners.wire.protocol import RunState

from .repeats import repeat_key
from .utilisation import compute, peak_text, share_pct

VERSION_AXIS = "configuration"


class Metric(NamedTuple):
    """A number of a run that a sweep table can show."""

    title: str
    unit: str
    value: Callable[[Run], float | None]
    least_is_best: bool


def _step_time(run: Run) -> float | None:
    spread = step_time(run.summary)
    return spread.median if spread else None


METRICS = {
    "step_time": Metric("Step time", "s", _step_time, True),
    "samples": Metric("Throughput", "samples/s", lambda run: run.samples_per_s, False),
    "tokens": Metric("Token throughput", "tokens/s", lambda run: run.tokens_per_s, False),
    "memory": Metric("Peak memory", "B", lambda run: run.memory_max_bytes, True),
    "compute": Metric("Compute per device", "FLOP/s", lambda run: compute(run.summary), False),
    "mfu": Metric("MFU", "%", lambda run: share_pct(run.summary, "mfu"), False),
    "utilisation": Metric("GPU utilisation", "%", lambda run: share_pct(run.summary, "gpu_util"), False),
}
EVERYWHERE = ("step_time", "samples", "tokens", "memory")
"""Metrics that are offered even if no run has them."""


def metrics_of(runs: Sequence[Run]) -> dict[str, Metric]:
    """Return the metrics that a table of these runs can show."""
    return {
        name: metric
        for name, metric in METRICS.items()
        if name in EVERYWHERE or any(metric.value(run) is not None for run in runs)
    }


class SweepEntry(NamedTuple):
    """A point of a sweep, with its run or without."""

    values: dict[str, Any]
    run: Run | None
    problem: str
    """Why the point cannot run; empty where it can."""


def sweep_entries(runs: Sequence[Run], points: Sequence[Point]) -> list[SweepEntry]:
    """List runs, and points without a run, that share the most common set of axes."""
    entries = _with_common_axes(_entries(runs, points))
    values = _joined_axes([entry.values for entry in entries])
    return [entry._replace(values=point) for entry, point in zip(entries, values, strict=True)]


def _entries(runs: Sequence[Run], points: Sequence[Point]) -> list[SweepEntry]:
    if len({run.config_id for run in runs}) > 1:
        return [SweepEntry({VERSION_AXIS: f"v{run.config.version}", **run.point}, run, "") for run in runs]
    digests = {run.point_digest for run in runs}
    return [SweepEntry(dict(run.point), run, "") for run in runs] + [
        SweepEntry(point.values, None, "; ".join(problem.message for problem in point.problems))
        for point in points
        if digest(point.values) not in digests
    ]


NETWORK_AXIS = "network"
_NETWORK_FORMATS = {"delay_ms": "{} ms", "bandwidth_gbps": "{} Gbit/s", "jitter_ms": "± {} ms", "loss_pct": "{} % lost"}


def _joined_axes(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Join the fields of a network to one axis, and drop times of emulated passes that follow from other axes."""
    joined = [_joined_network(point) for point in points]
    shorter = [{axis: value for axis, value in point.items() if not axis.startswith("emulation.")} for point in joined]
    return shorter if _distinct(shorter) == _distinct(joined) else joined


def _distinct(points: Sequence[Mapping[str, Any]]) -> int:
    return len({repr(sorted(point.items())) for point in points})


def _joined_network(point: Mapping[str, Any]) -> dict[str, Any]:
    fields = [axis for axis in point if axis.startswith(f"{NETWORK_AXIS}.")]
    rest = {axis: value for axis, value in point.items() if axis not in fields}
    if len(fields) < 2:
        return dict(point)
    texts = [
        _NETWORK_FORMATS.get(axis.rpartition(".")[2], "{}").format(field_value(point[axis]))
        for axis in fields
        if point[axis] is not None
    ]
    return {**rest, NETWORK_AXIS: ", ".join(texts)}


def _with_common_axes(entries: Sequence[SweepEntry]) -> list[SweepEntry]:
    """Return the entries with the most common set of axes."""
    kinds = [frozenset(entry.values) for entry in entries]
    most = max(kinds, key=kinds.count, default=frozenset())
    return [entry for entry, kind in zip(entries, kinds, strict=True) if kind == most]


def run_points(runs: Sequence[Run]) -> list[RunPoint]:
    """Convert finished and out-of-memory runs to points of figures, repeats to one; others have no final numbers."""
    ended = [run for run in runs if run.state in (RunState.FINISHED, RunState.OOM)]
    several = len({run.config_id for run in ended}) > 1
    points = _joined_axes(
        [({VERSION_AXIS: f"v{run.config.version}"} if several else {}) | dict(run.point) for run in ended]
    )
    values = {run.pk: point for run, point in zip(ended, points, strict=True)}
    axes = dict.fromkeys(axis for point in values.values() for axis in point)
    varied = [axis for axis in axes if len({repr(point.get(axis)) for point in values.values()}) > 1]
    single = [
        run_point(run, {axis: values[run.pk][axis] for axis in varied if axis in values[run.pk]}) for run in ended
    ]
    return grouped(single, {run.number: repeat_key(run) for run in ended})


def run_point(run: Run, values: dict[str, Any]) -> RunPoint:
    summary = run.summary
    memory = summary.get("memory_peak_bytes") or {}
    return RunPoint(
        number=run.number,
        state=run.state,
        values=values,
        gpus=int(run.gpus) if run.gpus else None,
        step_time_s=step_time(summary),
        samples_per_s=run.samples_per_s,
        tokens_per_s=run.tokens_per_s,
        memory_by_rank={int(rank): value for rank, value in (memory.get("by_rank") or {}).items()},
        memory_min=memory.get("min"),
        memory_max=memory.get("max", run.memory_max_bytes),
        timers=_timers(summary.get("timers_s") or {}),
        global_batch_size=run.resolved.get("train", {}).get("global_batch_size"),
        mfu_pct=share_pct(summary, "mfu"),
        hfu_pct=share_pct(summary, "hfu"),
        gpu_util_pct=share_pct(summary, "gpu_util"),
        loss=(summary.get("loss") or {}).get("last"),
        fps=summary.get("fps"),
        layout=_layout(run),
        flops_per_gpu=compute(summary),
        peak=peak_text(summary),
        roof=_roof(run),
        memory_bound=_memory_bound(run),
        is_published=run.origin != Run.Origin.MEASURED,
        is_printed=run.origin in PRINTED,
        kinds=summary.get("kinds") or {},
        marks=run.marks,
        is_on_cpu=run.is_on_cpu,
    )


def _layout(run: Run) -> tuple[int, int] | None:
    sizes = [run.resolved.get("parallel", {}).get(f"{kind}_parallel_size") for kind in ("tensor", "pipeline")]
    return (int(sizes[0]), int(sizes[1])) if all(sizes) else None


def _roof(run: Run) -> Roof | None:
    """Read the limits of a run's FLOP/s: peak and memory bandwidth of its device; None if the peak is unknown."""
    peak = run.summary.get("peak") or {}
    flops, train, model = peak.get("flops"), run.resolved.get("train", {}), run.resolved.get("model", {})
    batch, length = train.get("micro_batch_size"), model.get("sequence_length")
    if not flops or not batch or not length:
        return None
    gpu = find(str(peak.get("device") or ""))
    weight_bytes = 4 if train.get("precision") == "fp32" else 2
    return Roof(float(flops), gpu.memory_bandwidth if gpu else None, 2 * int(batch) * int(length) / weight_bytes)


def _memory_bound(run: Run) -> MemoryBound | None:
    """Read what limits the memory of a rank: the configuration, else the GPU that the run names."""
    limit_mib = run.resolved.get("launcher", {}).get("memory_limit_mib")
    if isinstance(limit_mib, int):
        return MemoryBound(float(limit_mib) * 2**20, "launcher.memory_limit_mib")
    gpu = find(str((run.summary.get("peak") or {}).get("device") or ""))
    return MemoryBound(float(gpu.memory_bytes), gpu.name) if gpu and not gpu.is_cpu else None


def _timers(timers: Mapping[str, Any]) -> dict[str, Timer]:
    """Average the phases of a step over all ranks; a rank without a phase counts as 0 s."""
    ranks = {rank for timer in timers.values() for rank in timer.get("by_rank") or {}}
    phases = {}
    for name, timer in timers.items():
        by_rank = timer.get("by_rank") or {}
        mean = sum(by_rank.values()) / len(ranks) if by_rank else timer.get("median")
        if mean is not None:
            phases[name] = Timer(mean, timer.get("min", mean), timer.get("max", mean))
    return phases
