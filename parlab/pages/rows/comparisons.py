"""Runs beside each other: what was set differently, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from parlab.charts.format import DASH, Unit, field_title, field_value, significant, unit_for
from parlab.charts.measures import MEASURES, Measure
from parlab.charts.points import RunPoint
from parlab.lab.models import Run
from parlab.lab.selectors.records import run_settings
from parlab.lab.selectors.sweep import run_point
from runners.protocol import RunState


class Difference(NamedTuple):
    """One field on which runs differ, with the value of each run as text."""

    field: str
    title: str
    section: str
    values: list[str]


class ResultCell(NamedTuple):
    text: str
    note: str
    """All digits, or why there is no number."""
    is_best: bool
    relative: str
    """Against the first run: `+12.3 %`."""


class Result(NamedTuple):
    """One number of all runs, in one unit."""

    name: str
    title: str
    unit: str
    cells: list[ResultCell]


class Comparison(NamedTuple):
    runs: list[Run]
    differences: list[Difference]
    same: list[tuple[str, str]]
    """Fields that all runs have with the same value."""
    results: list[Result]
    points: list[RunPoint]


def compare(runs: Sequence[Run]) -> Comparison:
    """Lay runs beside each other, in the order given; the first one is what the others are measured against."""
    settings = [_settings(run) for run in runs]
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    differences, same = [], []
    for name in names:
        values = [field_value(setting[name]) if name in setting else DASH for setting in settings]
        if len(set(values)) > 1:
            section, _, _last = name.rpartition(".")
            differences.append(Difference(name, field_title(name), section, values))
        else:
            same.append((name, values[0]))
    varied = [difference.field for difference in differences]
    points = [
        run_point(run, {name: setting[name] for name in varied if name in setting})
        for run, setting in zip(runs, settings, strict=True)
    ]
    return Comparison(list(runs), differences, same, _results(runs, points), points)


def _settings(run: Run) -> dict[str, Any]:
    """Keep what was set; a program that was told None was told something."""
    known = {"gpus": int(run.gpus or 1), **run_settings(run)}
    return {name: value for name, value in known.items() if value is not None or name.startswith("argument.")}


def results(runs: Sequence[Run]) -> list[Result]:
    """Lay the numbers of runs beside each other, those that at least one of them has."""
    return _results(runs, [run_point(run, {}) for run in runs])


def _results(runs: Sequence[Run], points: Sequence[RunPoint]) -> list[Result]:
    found = []
    for name, measure in MEASURES.items():
        values = [None if run.state == RunState.OOM else measure.value(p) for run, p in zip(runs, points, strict=True)]
        if any(value is not None for value in values):
            found.append(_result(name, measure, runs, values))
    return found


def _result(name: str, measure: Measure, runs: Sequence[Run], values: Sequence[float | None]) -> Result:
    plain = measure.is_as_it_is
    unit = Unit(1.0, measure.unit, measure.unit) if plain else unit_for(values, measure.unit)
    finished = [v for run, v in zip(runs, values, strict=True) if v is not None and run.state == RunState.FINISHED]
    best = (min if measure.least_is_best else max)(finished) if len(finished) > 1 else None
    # Bold once: of equals the first.
    place_of_best = next((n for n, v in enumerate(values) if v == best and runs[n].state == RunState.FINISHED), None)
    cells = [
        ResultCell(
            "OOM" if run.state == RunState.OOM else significant(None if value is None else value / unit.factor),
            run.reason if value is None else f"{value!r} {measure.unit}",
            best is not None and place == place_of_best,
            _relative(value, values[0]) if place else "",
        )
        for place, (run, value) in enumerate(zip(runs, values, strict=True))
    ]
    return Result(name, measure.title, unit.name, cells)


def _relative(value: float | None, first: float | None) -> str:
    if value is None or not first:
        return ""
    share = 100 * (value / first - 1)
    if abs(share) < 0.01:
        return "0 %"
    return f"{'+' if share > 0 else ''}{significant(share)} %"
