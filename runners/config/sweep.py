"""Sweeps: axes and their points, and differences between configurations."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .nearest import did_you_mean
from .problems import ConfigError, Problem
from .run import RunConfig, check, field_names, value_problems, with_values

MAX_SWEEP_POINTS = 2_000
"""Points times repeats."""
REPEATS = "launcher.repeats"
SEED = "train.seed"
TOGETHER = ","
"""Separates the fields of an axis that change together: "network.delay_ms, network.bandwidth_gbps"."""


class Point(NamedTuple):
    """One point of a sweep: the axis values, and either a RunConfig or its problems."""

    values: dict[str, Any]
    config: RunConfig | None
    problems: list[Problem]
    repeat: int = 1

    @property
    def digest(self) -> str:
        """Identify the run of this point among those of its sweep."""
        return digest(self.values if self.repeat == 1 else {"point": self.values, "repeat": self.repeat})


def sweep_problems(sweep: Any) -> list[Problem]:
    """Check the sweep itself: unknown fields, axes without values, too many points."""
    if not isinstance(sweep, Mapping):
        return [
            Problem(
                "sweep", sweep, 'a sweep must map fields to lists; use one like {"train.micro_batch_size": [1, 2, 4]}'
            )
        ]
    problems = []
    fields = set(field_names())
    points = 1
    used: set[str] = set()
    for axis, values in sweep.items():
        for field in axis_fields(axis):
            if field not in fields:
                near = ", ".join(sorted(name for name in fields if name.rpartition(".")[2] == field.rpartition(".")[2]))
                remedy = f"use {near}" if near else f"{did_you_mean(field, field_names())}use section.field"
                problems.append(Problem("sweep", axis, f"unknown field {field}; {remedy}"))
            elif field in used:
                problems.append(Problem("sweep", axis, f"{field} is in two axes; remove it from one of them"))
            if field == REPEATS:
                problems.append(Problem("sweep", axis, f"{REPEATS} cannot vary; set it in the configuration"))
            used.add(field)
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            problems.append(
                Problem("sweep", values, f"axis {axis} requires a list of at least one value, like [1, 2, 4]")
            )
            continue
        problems += _together_problems(axis, values)
        texts = [json.dumps(value, sort_keys=True, default=str) for value in values]
        repeated = sorted({text for text in texts if texts.count(text) > 1})
        if repeated:
            problems.append(
                Problem(
                    "sweep", values, f"axis {axis} contains {', '.join(repeated)} more than once; list each value once"
                )
            )
        points *= len(values)
    if points > MAX_SWEEP_POINTS:
        problems.append(
            Problem(
                "sweep",
                points,
                f"the sweep has {points} points, but at most {MAX_SWEEP_POINTS} are allowed;"
                " split it into several configurations",
            )
        )
    return problems


def sweep_value_problems(sweep: Mapping[str, Sequence[Any]]) -> list[Problem]:
    """Check each value of a valid sweep by itself: its type and its range, not how it fits to other fields."""
    problems = []
    for axis, values in sweep.items():
        columns: dict[str, list[Any]] = {}
        for value in values:
            for field, own in _values_of(axis, value).items():
                columns.setdefault(field, []).append(own)
        for field, column in columns.items():
            distinct = {json.dumps(value, sort_keys=True, default=str): value for value in column}
            problems += [problem for value in distinct.values() for problem in value_problems(field, value)]
    return problems


def axis_fields(axis: Any) -> list[str]:
    """Return the fields of an axis: one, or several that change together."""
    return [field.strip() for field in str(axis).split(TOGETHER)]


def _together_problems(axis: Any, values: Sequence[Any]) -> list[Problem]:
    count = len(axis_fields(axis))
    if count == 1 or all(isinstance(value, list | tuple) and len(value) == count for value in values):
        return []
    message = f"axis {axis} has {count} fields; write each of its points as a list of {count} values"
    return [Problem("sweep", values, message)]


def _values_of(axis: str, value: Any) -> dict[str, Any]:
    fields = axis_fields(axis)
    return {axis: value} if len(fields) == 1 else dict(zip(fields, value, strict=True))


def expand(data: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Return all points of a sweep in the order of its axes, invalid ones with their problems.

    An empty sweep is one point. Raises ConfigError for an invalid sweep.
    """
    problems = sweep_problems(sweep) or _too_many_runs(data, sweep)
    if problems:
        raise ConfigError(problems)
    points = []
    for combination in itertools.product(*sweep.values()):
        values: dict[str, Any] = {}
        for axis, value in zip(sweep, combination, strict=True):
            values |= _values_of(axis, value)
        config, invalid = check(with_values(data, values))
        points.append(Point(values, config, invalid))
    return points


def _too_many_runs(data: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]]) -> list[Problem]:
    launcher = data.get("launcher")
    repeats = launcher.get("repeats", 1) if isinstance(launcher, Mapping) else 1
    points = math.prod(len(values) for values in sweep.values())
    if not isinstance(repeats, int) or points * repeats <= MAX_SWEEP_POINTS:
        return []
    most = MAX_SWEEP_POINTS // points
    message = f"repeats {repeats} of {points} points are more than {MAX_SWEEP_POINTS} runs; use {most} at most"
    return [Problem(REPEATS, repeats, message)]


def repeated(points: Sequence[Point]) -> list[Point]:
    """Return a point per run: each valid point as often as its configuration asks, all first repeats first.

    A repeat has the next seed, unless the sweep varies the seed itself.
    """
    rounds = max((point.config.launcher.repeats for point in points if point.config), default=1)
    return [
        repeat_of(point, number)
        for number in range(1, rounds + 1)
        for point in points
        if number <= (point.config.launcher.repeats if point.config else 1)
    ]


def repeat_of(point: Point, number: int) -> Point:
    """Return one repeat of a point; its configuration is that of a single run."""
    if point.config is None or point.config.launcher.repeats == 1:
        return point
    data = point.config.model_dump(mode="json")
    data["launcher"]["repeats"] = 1
    if SEED not in point.values:
        data["train"]["seed"] += number - 1
    return point._replace(config=RunConfig.model_validate(data), repeat=number)


def digest(data: Any) -> str:
    """Return the SHA-256 of the canonical JSON, which does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the dotted fields whose values differ: field -> (old, new); None if one side has no value."""
    changed: dict[str, tuple[Any, Any]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changed |= difference(before, after, f"{prefix}{key}.")
        elif before != after:
            changed[f"{prefix}{key}"] = (before, after)
    return changed
