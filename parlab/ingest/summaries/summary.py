"""The series of an attempt -> its summary, in the shape described in docs/understand/architecture.md. SI units.

Keys without measurements are absent. All numbers are finite, so the summary is valid JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parlab.ingest.summaries import checkpoints, links, units
from parlab.ingest.summaries.loss import loss_of
from parlab.ingest.summaries.memory import GPU, NODE, memory_growth
from parlab.ingest.summaries.trend import trend_of
from parlab.series import store
from parlab.series.columns import Columns
from parlab.series.joining import cuts, joined
from runners.config import engine_of

_TIMERS = "timer/"
_HEALTH = "health/"
UTILISATION = "gpu_util_pct"
# A line may contain any number: values beyond these limits are not seconds or bytes, and their sums would overflow.
_LARGEST = 1e18
_SHORTEST_S = 1e-9
_MAX_LEFT_OUT = 1_000
"""Maximum number of excluded steps that a summary lists; `basis` counts all of them."""

ByRank = Mapping[int, Columns]


class _Steps(NamedTuple):
    """The steps in order, and the time of each on its slowest rank (NaN if a rank has no time)."""

    numbers: NDArray[np.int64]
    times: NDArray[np.float64]
    is_warmup: NDArray[np.bool_]
    is_profiled: NDArray[np.bool_]
    """Recorded by a profiler, which makes a step longer; none if no other step would be left."""

    @property
    def is_complete(self) -> NDArray[np.bool_]:
        return _is_sane(self.times)

    @property
    def counts(self) -> NDArray[np.bool_]:
        return self.is_complete & ~self.is_warmup & ~self.is_profiled


def summarise(attempt_id: int, resolved: Mapping[str, Any], earlier: Sequence[int] = ()) -> dict[str, Any]:
    """Compute the summary of an attempt from its stored series and its resolved RunConfig.

    `earlier` are the attempts that it goes on from in a chain: the summary is that of all, each step once.
    """
    chains = {attempt_id: earlier} if earlier else {}
    names = {info.metric for pk in (*earlier, attempt_id) for info in store.metrics(pk)}
    metrics = [name for name in names if name.startswith((_TIMERS, _HEALTH, links.PREFIX, checkpoints.PREFIX))]
    metrics += names & {"step_time_s", "warmup", "memory_peak_bytes", "loss", UTILISATION, NODE, GPU}
    engine = engine_of(resolved)
    metrics += units.names_of(engine, names).difference(metrics)
    series: dict[str, dict[int, Columns]] = {name: {} for name in metrics}
    read = store.read_many([*earlier, attempt_id], metrics)
    for (_, metric, rank), columns in joined(read, chains, cuts(chains, metrics), _is_sampled).items():
        series[metric][rank] = columns
    return summary_of(series, resolved) | memory_growth(series) | units.units_of(engine, series)


def _is_sampled(key: tuple[str, int]) -> bool:
    return key[1] < 0 or key[0] in (UTILISATION, NODE, GPU)


def summary_of(series: Mapping[str, ByRank], resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Compute a summary from {metric: {rank: columns}}, without rank -1, which is the node."""
    series = {name: {rank: by_rank[rank] for rank in sorted(by_rank) if rank >= 0} for name, by_rank in series.items()}
    profiled = (resolved.get("profile") or {}).get("steps") or []
    steps = _steps(series.get("step_time_s", {}), series.get("warmup", {}), profiled)
    summary: dict[str, Any] = {}
    if len(steps.numbers):
        summary |= _steps_and_basis(steps)
    summary |= _step_time(steps, resolved)
    if trend := trend_of(steps.numbers[steps.counts], steps.times[steps.counts]):
        summary["trend"] = trend
    peaks = {
        rank: peak
        for rank, columns in series.get("memory_peak_bytes", {}).items()
        if (peak := _peak(columns)) is not None
    }
    if peaks:
        by_rank = {str(rank): peak for rank, peak in peaks.items()}
        summary["memory_peak_bytes"] = {"min": min(peaks.values()), "max": max(peaks.values()), "by_rank": by_rank}
    timers = {
        name.removeprefix(_TIMERS): timer
        for name, by_rank in sorted(series.items())
        if name.startswith(_TIMERS) and (timer := _timer(by_rank, steps))
    }
    if timers:
        summary["timers_s"] = timers
    parts = {
        "health": _health(series),
        "loss": _loss(series.get("loss", {})),
        "gpu_utilization": _gpu_utilization(series.get(UTILISATION, {}), series.get("step_time_s", {}), steps),
        "links": links.links_of(series),
        "checkpoints": checkpoints.checkpoints_of(series),
    }
    return summary | {name: part for name, part in parts.items() if part}


def _steps(step_times: ByRank, warmups: ByRank, profiled: Sequence[int]) -> _Steps:
    numbers = _distinct(np.concatenate([np.empty(0, np.int64), *(columns.steps for columns in step_times.values())]))
    slowest = np.full(len(numbers), -np.inf)
    for columns in step_times.values():
        of_rank = np.full(len(numbers), np.nan)
        # If a step was printed twice, after a restart, the later time counts: assignment keeps the last.
        of_rank[np.searchsorted(numbers, columns.steps)] = columns.values
        slowest = np.maximum(slowest, of_rank)
    is_warmup = np.zeros(len(numbers), np.bool_)
    for columns in warmups.values():
        is_warmup |= np.isin(numbers, columns.steps[columns.values > 0])
    is_profiled = np.isin(numbers, np.array(profiled, np.int64)) & ~is_warmup
    if not (_is_sane(slowest) & ~is_warmup & ~is_profiled).any():
        is_profiled[:] = False
    return _Steps(numbers, slowest, is_warmup, is_profiled)


def _distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort and remove duplicates. A merge sort benefits from the ascending steps of each rank; np.unique does not."""
    ascending = np.sort(numbers, kind="stable")
    is_new = np.ones(len(ascending), np.bool_)
    is_new[1:] = ascending[1:] != ascending[:-1]
    return ascending[is_new]


def _steps_and_basis(steps: _Steps) -> dict[str, Any]:
    is_used = ~steps.is_warmup & ~steps.is_profiled
    counted, incomplete = steps.numbers[steps.counts], steps.numbers[~steps.is_complete & is_used]
    warmup, profiled = steps.numbers[steps.is_warmup], steps.numbers[steps.is_profiled]
    about: dict[str, Any] = {"count": len(counted)}
    if len(counted):
        about |= {"first": int(counted[0]), "last": int(counted[-1])}
    about["left_out"] = [int(step) for step in steps.numbers[~steps.counts][:_MAX_LEFT_OUT]]
    reasons = []
    if len(warmup):
        reasons.append((_named(warmup), "warm-up"))
    if len(profiled):
        reasons.append((_named(profiled), "recorded by the profiler"))
    if len(incomplete):
        reasons.append((_named(incomplete), "not timed by every rank"))
    if reasons:
        about["why"] = ", ".join(reason for _, reason in reasons)
    left_out = ", ".join(f"{which} left out as {reason}" for which, reason in reasons)
    if len(counted) == 1:
        basis = f"1 step ({counted[0]}), its slowest rank"
    elif len(counted):
        basis = f"median of {len(counted)} steps ({counted[0]} to {counted[-1]}), slowest rank of each"
    else:
        basis = "no step is counted"
    return {"steps": about, "basis": f"{basis}; {left_out}" if left_out else basis}


def _named(steps: NDArray[np.int64]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    if steps[-1] - steps[0] == len(steps) - 1:
        return f"steps {steps[0]} to {steps[-1]}"
    return f"{len(steps)} steps between {steps[0]} and {steps[-1]}"


def _step_time(steps: _Steps, resolved: Mapping[str, Any]) -> dict[str, Any]:
    counted = steps.times[steps.counts]
    if not len(counted):
        return {}
    p10, median, p90 = (float(value) for value in np.percentile(counted, [10, 50, 90]))
    step_time = {"median": median, "p10": p10, "p90": p90, "mean": float(np.mean(counted))}
    # The mean that engines print at their end: all steps except the first, whether warm-up or not.
    without_first = steps.times[1:][steps.is_complete[1:]]
    if len(without_first):
        step_time["mean_without_first"] = float(np.mean(without_first))
    summary: dict[str, Any] = {"step_time_s": step_time}
    # The work of a step may be unknown for an imported run.
    samples = resolved.get("train", {}).get("global_batch_size")
    tokens = resolved.get("model", {}).get("sequence_length")
    if median >= _SHORTEST_S and samples:
        summary["samples_per_s"] = int(samples) / median
        if tokens:
            summary["tokens_per_s"] = int(samples) * int(tokens) / median
        summary["ms_per_sample"] = median * 1000 / int(samples)
    return summary


def _is_sane(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.abs(values) < _LARGEST  # also false for NaN


def _peak(columns: Columns) -> int | None:
    values = columns.values[_is_sane(columns.values)]
    return int(values.max()) if len(values) else None


def _health(series: Mapping[str, ByRank]) -> dict[str, dict[str, float]]:
    """Return the rates of a health sweep per rank: the highest after warm-up, since other load can only lower them."""
    is_warmup = series.get("warmup", {}).values()
    warmup = np.concatenate([np.empty(0, np.int64), *(flags.steps[flags.values > 0] for flags in is_warmup)])
    health: dict[str, dict[str, float]] = {}
    for name in sorted(name for name in series if name.startswith(_HEALTH)):
        for rank, columns in series[name].items():
            rates = columns.values[_is_sane(columns.values) & (columns.values > 0) & ~np.isin(columns.steps, warmup)]
            if len(rates):
                health.setdefault(name.removeprefix(_HEALTH), {})[str(rank)] = float(rates.max())
    return health


def _timer(by_rank: ByRank, steps: _Steps) -> dict[str, Any] | None:
    """Return the median per rank over the steps after warm-up, and the mean and range of the medians.

    A timer of fewer than half of the steps, such as that of a checkpoint, also has `every_steps`, and `per_step_s`, its
    time divided among all steps.
    """
    warmup = steps.numbers[steps.is_warmup]
    medians, counts, sums = {}, [], []
    for rank, columns in by_rank.items():
        values = columns.values[_is_sane(columns.values) & ~np.isin(columns.steps, warmup)]
        if len(values):
            medians[str(rank)] = float(np.median(values))
            counts.append(len(values))
            sums.append(float(values.sum()))
    if not medians:
        return None
    ranks = list(medians.values())
    timer = {"median": float(np.mean(ranks)), "min": min(ranks), "max": max(ranks), "by_rank": medians}
    all_steps = int(np.count_nonzero(~steps.is_warmup))
    if 2 * max(counts) < all_steps:
        timer |= {"every_steps": round(all_steps / max(counts), 1), "per_step_s": max(sums) / all_steps}
    return timer


def _gpu_utilization(samples: ByRank, step_times: ByRank, steps: _Steps) -> dict[str, Any]:
    """Return GPU utilization in percent, from the start of the first counted step to the end of the last."""
    counted = steps.numbers[steps.counts]
    if not samples or not len(counted):
        return {}
    firsts = [columns.take(columns.steps == counted[0]) for columns in step_times.values()]
    lasts = [columns.take(columns.steps == counted[-1]) for columns in step_times.values()]
    # The time of an event is the end of its step.
    begin = min(float((first.times - first.values).min()) for first in firsts if len(first))
    end = max(float(last.times.max()) for last in lasts if len(last))
    by_gpu = {}
    for rank, columns in samples.items():
        values = columns.values[_is_sane(columns.values) & (columns.times > begin) & (columns.times <= end)]
        if len(values):
            mean, least, most = float(np.mean(values)), float(values.min()), float(values.max())
            by_gpu[str(rank)] = {"mean": mean, "min": least, "max": most}
    if not by_gpu:
        return {}
    return {
        "mean": float(np.mean([gpu["mean"] for gpu in by_gpu.values()])),
        "min": min(gpu["min"] for gpu in by_gpu.values()),
        "max": max(gpu["max"] for gpu in by_gpu.values()),
        "by_gpu": by_gpu,
    }


def _loss(by_rank: ByRank) -> dict[str, Any]:
    """Return what there is to know of the loss of the first rank that has one."""
    for columns in by_rank.values():
        # A step that was logged again after a restart counts with its last value.
        order = np.argsort(columns.steps, kind="stable")
        steps, values = columns.steps[order], columns.values[order]
        is_last = np.append(steps[1:] != steps[:-1], True) if len(steps) else np.empty(0, np.bool_)
        return loss_of(steps[is_last], values[is_last])
    return {}
