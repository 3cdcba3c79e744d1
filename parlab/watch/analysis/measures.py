"""The numbers of a run that a watch follows, with the direction in which each is better; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class Measure(NamedTuple):
    """One number of a summary."""

    title: str
    unit: str
    is_better_lower: bool
    path: tuple[str, ...]
    """Where the summary of a run has it."""


MEASURES = {
    "step_time": Measure("Step time", "s", True, ("step_time_s", "median")),
    "throughput": Measure("Throughput", "samples/s", False, ("samples_per_s",)),
    "tokens": Measure("Throughput", "tokens/s", False, ("tokens_per_s",)),
    "memory": Measure("Peak memory", "B", True, ("memory_peak_bytes", "max")),
    "mfu": Measure("MFU", "", False, ("mfu",)),
}
"""Measures by key; phases and bandwidths of a run come with their own names, see `measure_of`."""
PHASE, BANDWIDTH, HEALTH = "phase:", "bandwidth:", "health:"
LINK_RATES = (f"{HEALTH}link:", f"{HEALTH}all-reduce:")
"""How the rates of a link between two ranks begin; the others are those of a device."""
MAX_MEASURES = 100
"""Of one result; a health sweep of a node with eight GPUs has 80."""
_HEALTH = {
    "matrix": ("Matrix rate", "FLOP/s"),
    "memory": ("Memory bandwidth", "B/s"),
    "host": ("Bandwidth from the host", "B/s"),
    "link": ("Link bandwidth", "B/s"),
    "all-reduce": ("All-reduce", "B/s"),
}
"""What a health sweep measures: title and unit."""


def measure_of(key: str) -> Measure:
    """Return the measure of a key; of an unknown one its name, where more is better unless it ends in a time."""
    if key in MEASURES:
        return MEASURES[key]
    if key.startswith(PHASE):
        return Measure(f"Phase {key.removeprefix(PHASE)}", "s", True, ())
    if key.startswith(BANDWIDTH):
        return Measure(f"Bandwidth {key.removeprefix(BANDWIDTH)}", "bit/s", False, ())
    if key.startswith(HEALTH):
        name, _, part = key.removeprefix(HEALTH).partition(":")
        title, unit = _HEALTH.get(name, (name, ""))
        return Measure(f"{title} of {'ranks' if '-' in part else 'rank'} {part}", unit, False, ())
    return Measure(key, "", is_cost(key), ())


_COSTS = (
    "time",
    "latency",
    "duration",
    "memory",
    "mem",
    "bytes",
    "loss",
    "ms",
    "s",
    "sec",
    "seconds",
    "us",
    "ns",
    "mib",
)


def is_cost(name: str) -> bool:
    """Return whether less of a number with this name is better: times, memory and losses."""
    lowered = name.lower()
    if "per_s" in lowered or "/s" in lowered or lowered.endswith("rate"):
        return False
    return any(part in _COSTS for part in lowered.replace("-", "_").replace(".", "_").replace(" ", "_").split("_"))


def values_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the measures that a summary contains: positive, finite numbers only."""
    values: dict[str, float | None] = {key: _number_at(summary, row.path) for key, row in MEASURES.items()}
    if values["step_time"] is None:
        values["step_time"] = _number_at(summary, ("step_time_s", "mean"))
    for name, timer in (summary.get("timers_s") or {}).items():
        values[f"{PHASE}{name}"] = _number_at(timer, ("median",)) if isinstance(timer, Mapping) else None
    for link in summary.get("links") or []:
        if isinstance(link, Mapping):
            values[f"{BANDWIDTH}{link.get('source')}-{link.get('target')}"] = _number_at(link, ("bits_per_s",))
    for name, by_rank in (summary.get("health") or {}).items():
        for rank in by_rank if isinstance(by_rank, Mapping) else ():
            # A link is named by its two ranks, anything else by its own one.
            key = f"{HEALTH}{name}" if ":" in name else f"{HEALTH}{name}:{rank}"
            values[key] = _number_at(by_rank, (rank,))
    usable = {key: value for key, value in values.items() if value is not None and value > 0}
    return dict(list(usable.items())[:MAX_MEASURES])


def _number_at(content: Any, path: tuple[str, ...]) -> float | None:
    for key in path:
        content = content.get(key) if isinstance(content, Mapping) else None
    is_number = isinstance(content, int | float) and not isinstance(content, bool)
    return float(content) if is_number and math.isfinite(content) else None
