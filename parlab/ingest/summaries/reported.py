"""The series of a run that a script reports -> its summary, by the normal names of its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parlab.formats.grammar.quantities import CHOICES, quantity_of_metric
from parlab.ingest.summaries.memory import GPU, NODE, memory_growth
from parlab.ingest.summaries.printed import is_sampled
from parlab.ingest.summaries.summary import UTILISATION, ByRank, summary_of
from parlab.lab.models import NameMeaning
from parlab.series import store
from parlab.series.columns import Columns

_RATES = ("samples_per_s", "tokens_per_s", "tflops_per_gpu", "mfu")
_SEEN = "tokens_seen"
_TIMERS = "timer/"
_MIN_STEPS = 3
"""Minimum number of reports for a step time from time stamps; two could be the start and the end."""


class Source(NamedTuple):
    """The reported metric for a quantity, and the factor to its unit."""

    metric: str
    scale: float


def sources_of(
    metrics: Mapping[str, Any] | set[str] | list[str], meanings: Mapping[str, str] | None = None
) -> dict[str, Source]:
    """Return the metric of each quantity: the metric with the quantity's own name, otherwise the first by name.

    `meanings` are the keys of CHOICES that a person has chosen for metrics, empty for none; they take precedence.
    """
    meanings = meanings or {}
    sources: dict[str, Source] = {}
    for metric in sorted(metrics):
        quantity = None if metric in meanings else quantity_of_metric(metric)
        if quantity is not None and (quantity.name not in sources or metric == quantity.name):
            sources[quantity.name] = Source(metric, quantity.scale)
    for metric in sorted(set(metrics) & meanings.keys(), reverse=True):
        if meanings[metric] in CHOICES:
            quantity = CHOICES[meanings[metric]].meaning
            sources[quantity.name] = Source(metric, quantity.scale)
    return sources


def summarise_reported(
    attempt_id: int, resolved: Mapping[str, Any], *, world_size: int | None = None
) -> dict[str, Any]:
    """Summarise a reported run; `sources` in the summary names the metric behind each quantity.

    `world_size` is the number of ranks, by which rates per GPU become those of the run.
    """
    # What the client samples once a second has no steps of its own, from which a step time could follow.
    metrics = {info.metric for info in store.metrics(attempt_id) if not is_sampled((info.metric, info.rank))}
    rows = NameMeaning.objects.filter(experiment__runs__attempts=attempt_id, kind=NameMeaning.Kind.METRIC)
    sources = sources_of(metrics, dict(rows.values_list("name", "meaning")))
    series, samples = _series_of(attempt_id, sources, [name for name in metrics if name.startswith(_TIMERS)])
    sampled = series.pop(UTILISATION)
    is_derived = "step_time_s" not in series and bool(derived := _step_times(series))
    if is_derived:
        series["step_time_s"] = {0: derived}
    series[UTILISATION] = sampled
    summary = summary_of(series, resolved)
    for name in _RATES:
        if name not in summary and (rate := _median(series.get(name, {}))) is not None:
            summary[name] = rate
    _add_tokens(summary, series, world_size)
    ranks = {rank for by_rank in series.values() for rank in by_rank if rank >= 0}
    if ranks:
        summary["ranks"] = len(ranks)
    if is_derived and "basis" in summary:
        summary["basis"] += "; step times are the time stamps of the reports divided by their steps"
    if "memory_peak_bytes" not in summary and (peaks := _sampled_peaks(samples[GPU])):
        summary["memory_peak_bytes"] = {"min": min(peaks.values()), "max": max(peaks.values()), "by_rank": peaks}
        sources = {**sources, "memory_peak_bytes": Source(GPU, 1.0)}
    if sources:
        summary["sources"] = {name: source.metric for name, source in sorted(sources.items())}
    return summary | memory_growth(samples)


def _add_tokens(summary: dict[str, Any], series: Mapping[str, ByRank], world_size: int | None) -> None:
    """Add tokens/s from those of each GPU, or from the sum of the tokens so far."""
    if "tokens_per_s" in summary:
        return
    each = _median(series.get("tokens_per_s_per_gpu", {}))
    if each is not None:
        summary["tokens_per_s"] = each * (world_size or 1)
    elif (rate := _rate(series.get(_SEEN, {}))) is not None:
        summary["tokens_per_s"] = rate


def _rate(by_rank: ByRank) -> float | None:
    """Return the median increase per second of a sum that never falls; of the first rank: all log the same sum."""
    columns = by_rank[min(by_rank)] if by_rank else None
    if columns is None or len(columns) < _MIN_STEPS:
        return None
    gains, seconds = np.diff(columns.values), np.diff(columns.times)
    if not (gains >= 0).all() or not (gains > 0).any():
        return None
    counts = (gains > 0) & (seconds > 0)
    return float(np.median(gains[counts] / seconds[counts])) if counts.any() else None


def _sampled_peaks(samples: ByRank) -> dict[str, int]:
    """Return the highest memory of each rank's GPU that was sampled, in bytes."""
    return {str(rank): int(columns.values.max()) for rank, columns in samples.items() if rank >= 0 and len(columns)}


def _series_of(
    attempt_id: int, sources: Mapping[str, Source], timers: Sequence[str]
) -> tuple[dict[str, ByRank], dict[str, ByRank]]:
    """Read the series of ranks by the names of quantities, the timers, and the utilisation; and samples of memory."""
    read = {*(source.metric for source in sources.values()), *timers, UTILISATION}
    by_metric: dict[str, dict[int, Columns]] = {name: {} for name in read}
    samples: dict[str, dict[int, Columns]] = {NODE: {}, GPU: {}}
    for (_, metric, rank), columns in store.read_many([attempt_id], by_metric.keys() | samples.keys()).items():
        if rank >= 0 and metric in by_metric:
            by_metric[metric][rank] = columns
        if metric in samples:
            samples[metric][rank] = columns
    series: dict[str, ByRank] = {name: by_metric[name] for name in (*timers, UTILISATION)}
    for name, source in sources.items():
        series[name] = {rank: _scaled(columns, source.scale) for rank, columns in by_metric[source.metric].items()}
    return series, dict(samples)


def _scaled(columns: Columns, scale: float) -> Columns:
    return columns if scale == 1.0 else Columns(columns.steps, columns.times, columns.values * scale)


def _step_times(series: Mapping[str, ByRank]) -> Columns:
    """Return seconds per step from the time stamps of consecutive reports of the most frequent quantity."""
    longest = max((columns for ranks in series.values() for columns in ranks.values()), key=len, default=None)
    empty = Columns.joined([])
    if longest is None or len(longest) < _MIN_STEPS:
        return empty
    steps, times = np.diff(longest.steps), np.diff(longest.times)
    counts = (steps > 0) & (times > 0)
    if np.count_nonzero(counts) < _MIN_STEPS - 1:
        return empty
    seconds = times[counts] / steps[counts]
    return Columns(longest.steps[1:][counts], longest.times[1:][counts], seconds)


def _median(by_rank: ByRank) -> float | None:
    values = np.concatenate([np.empty(0), *(columns.values for columns in by_rank.values())])
    finite = values[np.isfinite(values) & (np.abs(values) < 1e18)]
    return float(np.median(finite)) if len(finite) else None
