"""A launch of a log, or the figures of a document -> a summary as in docs/understand/architecture.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from parlab.findings.facts import segment_sizes
from parlab.formats.headlines import is_of_steps
from parlab.formats.schema import Figure, Kind, Launch, Segment
from parlab.ingest.files.recording import FASTEST, NotFinite, Recording, metric_name
from parlab.ingest.readings.architecture import is_counted
from parlab.ingest.readings.launches import Sections
from parlab.ingest.summaries import utilisation
from parlab.ingest.summaries.summary import summary_of
from parlab.planner.job.hardware import Peak
from parlab.series.columns import Columns

_TIMERS = "timer/"
# Normal name of a figure in prose -> part of a summary and the factor to its unit.
_STATED = {
    "ms_per_sample": ("ms_per_sample", 1.0),
    "ms_per_iteration": ("step_time_s", 1e-3),
    "ms_per_step": ("step_time_s", 1e-3),
    "step_time_s": ("step_time_s", 1.0),
    "iteration_time_s": ("step_time_s", 1.0),
    "time_per_iteration_s": ("step_time_s", 1.0),
    "time_per_step_s": ("step_time_s", 1.0),
    "samples_per_s": ("samples_per_s", 1.0),
    "throughput_samples_per_s": ("samples_per_s", 1.0),
    "tokens_per_s": ("tokens_per_s", 1.0),
    "throughput_tokens_per_s": ("tokens_per_s", 1.0),
    "gpu_mem_bytes": ("memory_peak_bytes", 1.0),
    "gpu_util_pct": ("gpu_util_pct", 1.0),
    "flops_per_gpu": ("tflops_per_gpu", 1e-12),
    "mfu_pct": ("mfu_pct", 1.0),
    "avg_step_fps": ("fps", 1.0),
    "step_fps": ("fps", 1.0),
    "avg_fps": ("fps", 1.0),
    "fps": ("fps", 1.0),
}
_PLAIN = ("tflops_per_gpu", "gpu_util_pct", "mfu_pct", "hfu_pct", "fps")
# Part of a summary that parlab computes -> the figure whose kind it gives.
_COMPUTED = {"tflops_per_gpu": "tflops_per_gpu", "mfu": "mfu_pct", "hfu": "hfu_pct"}
_DEVICES = ("gpu_name", "device_name", "gpu_type", "gpu", "accelerator")
"""Arguments that may name the GPU."""


def segment_summary(segment: Segment, resolved: Sections, recording: Recording | None) -> dict[str, Any]:
    """Summarise a launch: from its steps if it has any, otherwise from the figures stated about it."""
    steps = _of_steps(segment, resolved, recording) if recording else {}
    stated = stated_summary(
        {part: value for name, figure in segment.figures.items() for part, value in _stated(name, figure)},
        resolved,
        "stated in prose",
    )
    stated_kinds = stated.pop("kinds", {})
    rates = _rates_as_printed(segment)
    kept = _printed_rates(segment) & rates.keys()
    if segment.step_time_s is not None and not is_of_steps(segment):
        # The series is of averages, or contradicts the rate that the steps print.
        kept |= {"step_time_s", "samples_per_s", "tokens_per_s", "ms_per_sample", "basis"} & rates.keys()
    steps = {name: value for name, value in steps.items() if name not in kept}
    summary = {**rates, **stated, **steps}
    _fill_memory(summary, segment)
    for name in ("tflops_per_gpu", "gpu_util_pct", "skipped_iterations"):
        value = getattr(segment, name)
        if value is not None:
            summary.setdefault(name, value)
    each = segment.metrics.get("tokens_per_s_per_gpu")
    if each is not None and each.kind == "printed" and "tokens_per_s" not in summary:
        summary["tokens_per_s_per_gpu"] = each.median
    of_prose = stated.keys() - steps.keys()
    of_log = _utilisation_as_printed(summary, segment) | segment.kinds
    if kinds := _only(stated_kinds, of_prose) | _only(of_log, summary.keys() - of_prose):
        summary["kinds"] = kinds
    if series_kinds := _series_kinds(segment):
        summary["series_kinds"] = series_kinds
    if segment.validation:
        summary["validation"] = segment.validation[-1].model_dump(include={"iteration", "values"})
    if figures := _figures_of(segment):
        summary["figures"] = figures
    return summary | {"end": segment.end.state}


def _only(values: dict[str, Any], names: Set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


def _fill_memory(summary: dict[str, Any], segment: Segment) -> None:
    """Add what a log states of the memory beside its series, and of which steps and GPUs these are."""
    if "memory_peak_bytes" not in summary and segment.gpu_mem_max_bytes:
        summary["memory_peak_bytes"] = {"max": segment.gpu_mem_max_bytes}
    peak = summary.get("memory_peak_bytes", {})
    if "by_rank" in peak and (remark := _of_memory(segment, len(peak["by_rank"]))):
        peak["remark"] = remark
    stated = segment.figures.get("gpu_mem_bytes")
    if stated and stated.low is not None and stated.high is not None and peak:
        peak.setdefault("min", stated.low)


def _of_memory(segment: Segment, ranks: int) -> str:
    """Say of which steps and GPUs a log prints the memory, where it is not that of all."""
    gpus, last = segment.launch.world_size or 1, segment.steps.last if segment.steps else None
    until = segment.memory.until if segment.memory else None
    early = f"printed last after step {until} of {last}" if until is not None else ""
    return ", ".join(filter(None, [early, f"of {ranks} of {gpus} GPUs" if ranks < gpus else ""]))


def _printed_rates(segment: Segment) -> set[str]:
    """Return the rates that the log prints, which are not computed from its steps, and what follows from them."""
    printed = {name for name in ("samples_per_s", "tokens_per_s") if getattr(segment, name)} - segment.kinds.keys()
    return printed | ({"ms_per_sample", "tokens_per_s"} if "samples_per_s" in printed else set())


def _series_kinds(segment: Segment) -> dict[str, Kind]:
    """Return how the values of each series came about that are not printed as such."""
    return {metric_name("step", name): own.kind for name, own in segment.metrics.items() if own.kind != "printed"}


def _figures_of(segment: Segment) -> dict[str, Any]:
    """Return the figures of prose, and those of a launch without steps."""
    figures = {name: figure_parts(figure) for name, figure in segment.figures.items()}
    if segment.steps is None:
        metrics = {name: {"value": metric.last, "unit": "", "text": ""} for name, metric in segment.metrics.items()}
        figures |= {name: metric for name, metric in metrics.items() if name not in figures}
    return figures


def _utilisation_as_printed(summary: dict[str, Any], segment: Segment) -> dict[str, Kind]:
    """Add the MFU that the steps print, in per cent; return its kind if it is an average."""
    for name, scale in (("mfu_pct", 1.0), ("mfu", 100.0), ("average_mfu", 100.0)):
        if "mfu_pct" not in summary and (mfu := segment.metrics.get(name)) is not None:
            summary["mfu_pct"] = mfu.median * scale
            return {} if mfu.kind == "printed" else {"mfu_pct": mfu.kind}
    return {}


def with_utilisation(
    summary: dict[str, Any], resolved: Sections, launch: Launch, reference: utilisation.Reference | None = None
) -> dict[str, Any]:
    """Add FLOPs and MFU if the model sizes and the number of GPUs are known; printed figures take precedence.

    `reference` is the peak of the devices if it is known from elsewhere than the launch.
    """
    sizes = segment_sizes(Segment(launch=launch))
    is_known = sizes.is_plain or (sizes.is_transformer and is_counted(resolved.get("model", {})))
    if not is_known or sizes.is_ramped or sizes.is_curriculum:
        return summary
    cluster = resolved.get("cluster", {})
    devices = launch.world_size or cluster.get("nodes", 0) * cluster.get("gpus_per_node", 0)
    parts = utilisation.parts_of(summary, resolved, devices, reference or _reference(resolved, launch))
    computed = {shown for name, shown in _COMPUTED.items() if name in parts and not {name, shown} & summary.keys()}
    kinds = dict.fromkeys(sorted(computed), "derived") | (summary.get("kinds") or {})
    return parts | summary | ({"kinds": kinds} if kinds else {})


def _reference(resolved: Sections, launch: Launch) -> utilisation.Reference | None:
    """Return the peak of the GPU that a launch names, otherwise the peak that its trainer states."""
    precision = resolved.get("train", {}).get("precision")
    if not precision:
        return None
    for name in _DEVICES:
        device = launch.arguments.get(name)
        if isinstance(device, str) and (reference := utilisation.by_data_sheet(device[:200], precision)):
            return reference
    stated = launch.arguments.get("peak_flops_per_gpu")
    if isinstance(stated, int | float) and 0 < stated < 1e18:
        return utilisation.Reference(Peak(float(stated), "peak stated in the log"), utilisation.STATED)
    return None


def figure_parts(figure: Figure) -> dict[str, Any]:
    """Return a figure of prose with its text."""
    return figure.model_dump(include={"value", "low", "high", "total", "unit", "text"}, exclude_none=True)


def _stated(name: str, figure: Figure) -> list[tuple[str, float]]:
    part = _STATED.get(name)
    return [(part[0], figure.value * part[1])] if part and figure.value is not None else []


def stated_summary(measured: Mapping[str, float], resolved: Sections, where: str) -> dict[str, Any]:
    """Build a summary from single figures {part of a summary: value} and what follows from the configuration.

    `where` says where the figures are stated; `basis` names each figure with it, and each computation, and `kinds` what
    is computed.
    """
    stated = {name: value for name, value in measured.items() if np.isfinite(value) and value > 0}
    summary: dict[str, Any] = {name: stated[name] for name in _PLAIN if name in stated}
    if "memory_peak_bytes" in stated:
        summary["memory_peak_bytes"] = {"max": stated["memory_peak_bytes"]}
    basis = [
        f"{name.replace('_', ' ')} {where}" for name in stated if name not in ("memory_peak_bytes", "gpu_util_pct")
    ]
    batch = resolved.get("train", {}).get("global_batch_size")
    rates, computed = _rates_of(stated, batch, resolved.get("model", {}).get("sequence_length"))
    basis += filter(None, computed.values())
    summary |= rates | ({"basis": "; ".join(dict.fromkeys(basis))} if basis else {})
    return summary | ({"kinds": dict.fromkeys(computed, "derived")} if computed else {})


def _rates_of(
    stated: Mapping[str, float], batch: int | None, sequence_length: int | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return step time and rates, stated or computed from each other; and those that were computed, with a remark."""
    ms_per_sample, samples = stated.get("ms_per_sample"), stated.get("samples_per_s")
    seconds = stated.get("step_time_s")
    computed: dict[str, str] = {}
    if seconds is None and batch and (seconds := _step_seconds(batch, ms_per_sample, samples)):
        computed["step_time_s"] = "step time from it and the global batch size"
    if samples is None and (samples := _samples_per_s(batch, ms_per_sample, seconds)):
        computed["samples_per_s"] = "samples/s computed"
    rates: dict[str, Any] = {} if seconds is None else {"step_time_s": {"mean": seconds}}
    if samples is not None:
        rates |= {"samples_per_s": samples, "ms_per_sample": ms_per_sample or 1000 / samples}
    tokens = stated.get("tokens_per_s")
    if tokens is None and samples and sequence_length:
        tokens, computed["tokens_per_s"] = samples * sequence_length, ""
    return rates | ({"tokens_per_s": tokens} if tokens else {}), computed


def _step_seconds(batch: int, ms_per_sample: float | None, samples_per_s: float | None) -> float | None:
    if ms_per_sample:
        return batch * ms_per_sample / 1000
    return batch / samples_per_s if samples_per_s else None


def _samples_per_s(batch: int | None, ms_per_sample: float | None, seconds: float | None) -> float | None:
    if ms_per_sample:
        return 1000 / ms_per_sample
    return batch / seconds if batch and seconds else None


def _of_steps(segment: Segment, resolved: Sections, recording: Recording) -> dict[str, Any]:
    """Summarise the recorded series like those of parlab's own runs; one series is in memory at a time."""
    names = recording.metrics()
    warm = _warm_up(segment)
    series: dict[str, dict[int, Columns]]
    series = {name: recording.read(name) for name in ("step_time_s", "loss", "memory_peak_bytes") if name in names}
    sections = _without_batch(resolved) if _is_ramped(segment) else resolved
    summary = summary_of({**series, "warmup": warm}, sections)
    if recording.not_finite is not None:
        summary["loss"] = _with_not_finite(summary.get("loss", {}), recording.not_finite)
    if "step_time_s" not in summary:
        # If no step was timed by all ranks, the rates printed in the log are used.
        summary.pop("steps", None)
        summary.pop("basis", None)
    # Timers need only the warm-up steps, not the times of all steps.
    steps = {0: warm[0]} if warm else {}
    timers: dict[str, Any] = {}
    for name in sorted(names):
        if name.startswith(_TIMERS):
            timer_summary = summary_of({name: recording.read(name), "step_time_s": steps, "warmup": warm}, sections)
            timers |= _with_fastest(timer_summary.get("timers_s", {}), name, recording)
    if timers:
        summary["timers_s"] = timers
    return summary


def _with_not_finite(loss: dict[str, Any], bad: NotFinite) -> dict[str, Any]:
    """Add the values that the log prints as NaN or infinite, which its series do not have."""
    last_is_bad = bad.last_step is None or bad.last_step > (loss.get("last_step") or -1)
    known = {name: value for name, value in loss.items() if name != "last" or not last_is_bad}
    return known | {"not_finite": bad.steps, "first_not_finite": bad.first_step, "line": bad.line}


def _with_fastest(timers: dict[str, Any], name: str, recording: Recording) -> dict[str, Any]:
    """Use the minimum over ranks that a log prints as a range."""
    lows = recording.read(FASTEST + name.removeprefix(_TIMERS))
    values = [float(np.median(columns.values)) for columns in lows.values() if len(columns)]
    return {key: timer | {"min": min([timer["min"], *values])} for key, timer in timers.items()} if values else timers


def _warm_up(segment: Segment) -> dict[int, Columns]:
    left_out = segment.steps.left_out if segment.steps else []
    if not left_out:
        return {}
    ones = np.ones(len(left_out))
    return {0: Columns(np.array(left_out, np.int64), ones, ones)}


def _is_ramped(segment: Segment) -> bool:
    batch = segment.metrics.get("global_batch_size")
    return batch is not None and batch.min != batch.max


def _without_batch(resolved: Sections) -> Sections:
    train = {name: value for name, value in resolved["train"].items() if name != "global_batch_size"}
    return {**resolved, "train": train}


def _rates_as_printed(segment: Segment) -> dict[str, Any]:
    """Return the rates of a log; those computed from the series take precedence over what it does not print."""
    summary: dict[str, Any] = {}
    if segment.steps is not None:
        summary["steps"] = segment.steps.model_dump(include={"count", "first", "last", "left_out", "why"})
    if segment.step_time_s is not None:
        summary["step_time_s"] = segment.step_time_s.model_dump(exclude_none=True)
    if segment.samples_per_s:
        summary["samples_per_s"] = segment.samples_per_s
        summary["ms_per_sample"] = 1000 / segment.samples_per_s
    if segment.tokens_per_s:
        summary["tokens_per_s"] = segment.tokens_per_s
    if segment.basis:
        summary["basis"] = "; ".join(f"{name}: {text}" for name, text in segment.basis.items())
    return summary
