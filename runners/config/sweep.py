"""Sweeps: axes, their points, and what tells two configurations apart."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .problems import ConfigError, Problem
from .run import RunConfig, check, field_names, with_values

MAX_SWEEP_POINTS = 2_000
TOGETHER = ","
"""Stands between the fields of an axis that change together: "network.delay_ms, network.bandwidth_gbps"."""


class Point(NamedTuple):
    """One point of a sweep: the axis values, and either a RunConfig or the reasons why it cannot run."""

    values: dict[str, Any]
    config: RunConfig | None
    problems: list[Problem]


def sweep_problems(sweep: Any) -> list[Problem]:
    """What is wrong with the sweep itself: unknown fields, axes without values, too many points."""
    if not isinstance(sweep, Mapping):
        return [Problem("sweep", sweep, 'a sweep maps fields to lists, like {"train.micro_batch_size": [1, 2, 4]}')]
    problems = []
    known = set(field_names())
    points = 1
    used: set[str] = set()
    for axis, values in sweep.items():
        for field in axis_fields(axis):
            if field not in known:
                near = ", ".join(sorted(name for name in known if name.rpartition(".")[2] == field.rpartition(".")[2]))
                remedy = f"use {near}" if near else "use section.field"
                problems.append(Problem("sweep", axis, f"axis {field} is no field; {remedy}"))
            elif field in used:
                problems.append(Problem("sweep", axis, f"{field} is in two axes; leave it in one"))
            used.add(field)
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            problems.append(Problem("sweep", values, f"axis {axis} needs a list of at least one value, like [1, 2, 4]"))
            continue
        problems += _together_problems(axis, values)
        seen = [json.dumps(value, sort_keys=True, default=str) for value in values]
        repeated = sorted({value for value in seen if seen.count(value) > 1})
        if repeated:
            problems.append(
                Problem(
                    "sweep", values, f"axis {axis} names {', '.join(repeated)} more than once; name each value once"
                )
            )
        points *= len(values)
    if points > MAX_SWEEP_POINTS:
        problems.append(
            Problem(
                "sweep",
                points,
                f"{points} points are more than {MAX_SWEEP_POINTS}; split the sweep into several configs",
            )
        )
    return problems


def axis_fields(axis: Any) -> list[str]:
    """Return the fields of an axis: one, or several that change together."""
    return [field.strip() for field in str(axis).split(TOGETHER)]


def _together_problems(axis: Any, values: Sequence[Any]) -> list[Problem]:
    count = len(axis_fields(axis))
    if count == 1 or all(isinstance(value, list | tuple) and len(value) == count for value in values):
        return []
    message = f"axis {axis} has {count} fields; give each of its points as a list of {count} values"
    return [Problem("sweep", values, message)]


def _values_of(axis: str, value: Any) -> dict[str, Any]:
    fields = axis_fields(axis)
    return {axis: value} if len(fields) == 1 else dict(zip(fields, value, strict=True))


def expand(data: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]]) -> list[Point]:
    """All points of a sweep in the order of its axes, invalid ones included with their reasons.

    An empty sweep is one point. Raises ConfigError when the sweep itself makes no sense.
    """
    problems = sweep_problems(sweep)
    if problems:
        raise ConfigError(problems)
    points = []
    for combination in itertools.product(*sweep.values()):
        values: dict[str, Any] = {}
        for axis, value in zip(sweep, combination, strict=True):
            values |= _values_of(axis, value)
        config, found = check(with_values(data, values))
        points.append(Point(values, config, found))
    return points


def digest(data: Any) -> str:
    """SHA-256 over canonical JSON: equal configurations have equal digests whatever their key order."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted fields whose values differ: field -> (old, new); None where one side has no value."""
    changed: dict[str, tuple[Any, Any]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changed |= difference(before, after, f"{prefix}{key}.")
        elif before != after:
            changed[f"{prefix}{key}"] = (before, after)
    return changed
