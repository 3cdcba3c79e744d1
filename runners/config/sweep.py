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
    for axis, values in sweep.items():
        if axis not in known:
            near = ", ".join(sorted(name for name in known if name.rpartition(".")[2] == str(axis).rpartition(".")[2]))
            problems.append(
                Problem("sweep", axis, f"axis {axis} is no field; {f'use {near}' if near else 'use section.field'}")
            )
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            problems.append(Problem("sweep", values, f"axis {axis} needs a list of at least one value, like [1, 2, 4]"))
            continue
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


def expand(data: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]]) -> list[Point]:
    """All points of a sweep in the order of its axes, invalid ones included with their reasons.

    An empty sweep is one point. Raises ConfigError when the sweep itself makes no sense.
    """
    problems = sweep_problems(sweep)
    if problems:
        raise ConfigError(problems)
    points = []
    for combination in itertools.product(*sweep.values()):
        values = dict(zip(sweep, combination, strict=True))
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
