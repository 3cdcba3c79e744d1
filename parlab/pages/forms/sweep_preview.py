"""Preview beside the form of a configuration: its changes, the points of its sweep, and their predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.format import duration, significant
from parlab.charts.sweeps import device_map
from parlab.charts.sweeps.device_map import DeviceMap
from parlab.lab.forms.config_layout import shown_label
from parlab.lab.models import Config, Run
from parlab.lab.services.runs import launchable, point_label
from parlab.pages.rows.predictions import Expected, Pools
from runners.config import ConfigError, Point, RunConfig, check, complete, difference, digest, expand

POINTS_SHOWN = 200
NO_RUNS: Mapping[str, Run] = {}


class PointRow(NamedTuple):
    label: str
    problems: list[str]
    run: Run | None
    gpus: int
    """0 if the point cannot run."""
    expected: Expected | None
    values: Mapping[str, Any]
    """Axis values by dotted field."""
    config: RunConfig | None

    @property
    def repeats(self) -> int:
        """Number of runs that a launch starts at this point."""
        return self.config.launcher.repeats if self.config else 1


class Preview(NamedTuple):
    """Preview of a sweep before it is launched."""

    points: list[PointRow]
    left_out: int
    impossible: int
    sweep_problems: list[str]
    gpus: str
    """Smallest and largest number of GPUs of a point, as text."""
    total: str
    """Predicted time of all points together, as text."""
    map: DeviceMap | None

    @property
    def number(self) -> int:
        """Total number of points."""
        return len(self.points) + self.left_out

    @property
    def repeats(self) -> int:
        """Number of runs of each point."""
        return max((row.repeats for row in self.points), default=1)

    @property
    def runs(self) -> int:
        """Number of runs that a launch of all points starts."""
        return (self.number - self.impossible) * self.repeats


def preview(data: Mapping[str, Any], sweep: Mapping[str, Any], runs: Mapping[str, Run] = NO_RUNS) -> Preview:
    """Expand a configuration; `runs` are its existing runs by the digest of their point."""
    try:
        points = [launchable(point) for point in expand(data, sweep)]
    except ConfigError as error:
        return Preview([], 0, 0, [str(problem) for problem in error.problems], "", "", None)
    return points_preview(points, data, runs, Pools())


def points_preview(points: Sequence[Point], data: Mapping[str, Any], runs: Mapping[str, Run], pools: Pools) -> Preview:
    """Predict the points of a sweep, and count those that cannot run."""
    rows = [_point_row(point, runs, pools) for point in points[:POINTS_SHOWN]]
    sizes = sorted({point.config.world_size for point in points if point.config})
    return Preview(
        rows,
        len(points) - len(rows),
        sum(point.config is None for point in points),
        [],
        str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}" if sizes else "",
        _total(rows, points),
        _device_map(data),
    )


def _point_row(point: Point, runs: Mapping[str, Run], pools: Pools) -> PointRow:
    return PointRow(
        shown_label(point_label(point.values)) or "the configuration itself",
        [str(problem) for problem in point.problems],
        runs.get(digest(point.values)),
        point.config.world_size if point.config else 0,
        pools.expected(point.config) if point.config else None,
        point.values,
        point.config,
    )


def _total(rows: list[PointRow], points: Sequence[Point]) -> str:
    seconds = [
        row.expected.step_time_s * point.config.train.iterations * point.config.launcher.repeats
        for row, point in zip(rows, points, strict=False)
        if row.expected and row.expected.step_time_s is not None and point.config
    ]
    hours = [
        row.expected.gpu_hours * row.repeats for row in rows if row.expected and row.expected.gpu_hours is not None
    ]
    if not seconds:
        return ""
    rest = "" if len(seconds) == len(points) else f", for {len(seconds)} of {len(points)} points"
    devices = f"{significant(sum(hours))} device hours" if sum(hours) >= 0.01 else "less than 0.01 device hours"
    return f"about {duration(sum(seconds))} of training, {devices}{rest}"


def _device_map(data: Mapping[str, Any]) -> DeviceMap | None:
    config, _ = check(data)
    return None if config is None or not config.engine.has_device_map else device_map.draw(config.sharding.grid)


def changes_between(old: Config | None, data: Mapping[str, Any], sweep: Any) -> list[tuple[str, Any, Any]]:
    """List the fields that differ from a stored version: name, old value, new value."""
    if old is None:
        return []
    new = {**_complete(data), "sweep": sweep}
    return [(field, before, after) for field, (before, after) in difference(_with_sweep(old), new).items()]


def _with_sweep(config: Config) -> dict[str, Any]:
    """Return all fields and the sweep; configs stored by older versions may have other fields."""
    return {**_complete(config.data), "sweep": config.sweep}


def _complete(data: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return complete(data)
    except ConfigError:
        return dict(data)
