"""What engines without steps measure: times of messages, trials of a search, and the time that a run is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parlab.series.columns import Columns
from runners.config.engines import Engine

ByRank = Mapping[int, Columns]

MESSAGES = "time_s/"
"""Start of the series of engine allreduce that advice reads; the rest of the name is the operation."""
TRIALS = (
    "num_layers", "micro_batch_size", "processes", "fits", "trial_s", "tokens_per_s",
    "zero_stage", "accumulation", "samples_per_s", "tuner_samples_per_s",
)  # fmt: skip
"""Series of the trials of engines capacity and autotuning."""
_MOST = 200
"""Trials and message sizes that a summary keeps."""


def names_of(engine: Engine, names: set[str]) -> set[str]:
    """Return the series that `units_of` reads, of those that a run has."""
    if engine.measures_bandwidth:
        return {name for name in names if name.startswith(MESSAGES)}
    return names & set(TRIALS) if not engine.has_steps else set()


def units_of(engine: Engine, series: Mapping[str, ByRank]) -> dict[str, Any]:
    """Return the parts of a summary: `messages` or `trials`, and `unit` with the time that a run is judged by (s)."""
    if engine.measures_bandwidth:
        return _messages(series)
    if not engine.has_steps and "trial_s" in series:
        return _trials(engine, series)
    return {}


def _messages(series: Mapping[str, ByRank]) -> dict[str, Any]:
    messages = {}
    for name, by_rank in sorted(series.items()):
        columns = by_rank.get(0)
        if not name.startswith(MESSAGES) or columns is None:
            continue
        rows = sorted(zip(columns.steps.tolist(), columns.values.tolist(), strict=True))
        times = {str(size): seconds for size, seconds in rows if size > 0 and 0 < seconds < 1e8}
        if times:
            messages[name.removeprefix(MESSAGES)] = dict(list(times.items())[:_MOST])
    if not messages:
        return {}
    largest = [list(times.items())[-1] for times in messages.values()]
    per_gib_s = sum(seconds / int(size) for size, seconds in largest) / len(largest) * 2**30
    return {"messages": messages, "unit": {"name": "GiB in the largest messages", "time_s": per_gib_s}}


def _trials(engine: Engine, series: Mapping[str, ByRank]) -> dict[str, Any]:
    trials: dict[int, dict[str, float]] = {}
    for name in TRIALS:
        columns = series.get(name, {}).get(0)
        for number, value in zip(columns.steps.tolist(), columns.values.tolist(), strict=True) if columns else ():
            if abs(value) < 1e18:
                trials.setdefault(number, {})[name] = value
    rows = [row for _, row in sorted(trials.items()) if row.get("trial_s", 0) > 0][:_MOST]
    if not rows:
        return {}
    if engine.searches_capacity:
        return {"trials": rows, "unit": {"name": "search", "time_s": sum(row["trial_s"] for row in rows)}}
    rates = [row["samples_per_s"] for row in rows if row.get("samples_per_s", 0) > 0]
    unit = {"unit": {"name": "sample in the best experiment", "time_s": 1 / max(rates)}} if rates else {}
    return {"trials": rows, **unit}
