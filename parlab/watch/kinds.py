"""What kind of change an alert is about, where the evidence says so: code, software, noise, method and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parlab.lab.models import Run

from .models import Alert
from .selectors import Between

_KINDS = {
    "commit": "code",
    "config": "configuration",
    "configuration": "configuration",
    "node": "node",
    "parlab": "method",
    **dict.fromkeys(("gpus", "cpu_model", "cpu_cores", "memory_bytes"), "hardware"),
}
"""Beginnings of the names of an environment; all others are software."""
_METHOD = ("profile.", "launcher.", "train.warmup_steps", "train.log_interval", "train.iterations")
"""Settings of how a run is measured, and not of what it computes."""
_OF_COMMIT = ("command.",)
"""The command names the commit that it runs."""
_ALIKE = 0.25
"""Share of the results after a change within the range of those before it from which chance may explain it."""
_FEWEST = 4


def kinds_of(alert: Alert, between: Between, before: Sequence[float], after: Sequence[float]) -> str:
    """Name what changed between the last good and the first bad result; empty where there is no evidence.

    `before` and `after` are the values of the largest change. Noise is named where nothing else changed.
    """
    if alert.kind == "node" or alert.watch.node_id is not None:
        return "hardware"
    names = {row.name.removeprefix("packages.").partition(".")[0] for row in between.environment}
    kinds = {_KINDS.get(name, "software") for name in names} | _of_runs(alert.last_good.run, alert.first_bad.run)
    if not kinds and is_noise(before, after):
        return "noise"
    return " or ".join(sorted(kinds))


def _of_runs(good: Run | None, bad: Run | None) -> set[str]:
    """Return what the configurations of two runs say: other settings, or another way to measure."""
    if good is None or bad is None or good.pk == bad.pk:
        return set()
    kinds = {"method"} if good.kind_of("step_time_s") != bad.kind_of("step_time_s") else set()
    old, new = _settings(good.resolved), _settings(bad.resolved)
    differing = [name for name in old.keys() | new.keys() if old.get(name) != new.get(name)]
    told = [name for name in differing if not name.startswith(_OF_COMMIT)]
    return kinds | {"method" if name.startswith(_METHOD) else "configuration" for name in told}


def _settings(resolved: Mapping[str, Any]) -> dict[str, Any]:
    sections = ((section, fields) for section, fields in resolved.items() if isinstance(fields, Mapping))
    return {f"{section}.{name}": value for section, fields in sections for name, value in fields.items()}


def is_noise(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether the results after a change lie so often among those before it that chance may explain it."""
    if min(len(before), len(after)) < _FEWEST:
        return False
    low, high = np.percentile(before, [10, 90])
    return float(np.mean([low <= value <= high for value in after])) >= _ALIKE
