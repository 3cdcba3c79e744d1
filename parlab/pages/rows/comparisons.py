"""A comparison of runs: different settings and results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from parlab.charts.format import DASH, MINUS, Unit, field_title, field_value, significant, unit_for
from parlab.charts.measures import MEASURES, Measure
from parlab.charts.points import RunPoint
from parlab.lab.models import Run
from parlab.lab.selectors.records import run_settings
from parlab.lab.selectors.sweep import run_point
from runners.protocol import RunState


class Difference(NamedTuple):
    """A field with different values, with the value of each run as text."""

    field: str
    title: str
    section: str
    values: list[str]


class ResultCell(NamedTuple):
    text: str
    note: str
    """All digits, or the reason why there is no number."""
    is_best: bool
    relative: str
    """Difference from the first run: `+12.3 %`."""


class Result(NamedTuple):
    """One measure of all runs, in one unit."""

    name: str
    title: str
    unit: str
    cells: list[ResultCell]


class Comparison(NamedTuple):
    runs: list[Run]
    differences: list[Difference]
    same: list[tuple[str, str]]
    """Fields with the same value in all runs."""
    results: list[Result]
    points: list[RunPoint]


def compare(runs: Sequence[Run]) -> Comparison:
    """Compare runs in the given order; differences are relative to the first run."""
    settings = [_settings(run) for run in runs]
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    differences: list[Difference] = []
    same: list[tuple[str, str]] = []
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
    """Return the settings of a run without unset fields; None is a value only where a program got it as an argument."""
    fields = {"gpus": int(run.gpus) if run.gpus else "unknown", **run_settings(run)}
    return {name: value for name, value in fields.items() if value is not None or name.startswith("argument.")}


def results(runs: Sequence[Run]) -> list[Result]:
    """Return the measures that at least one of the runs has."""
    return _results(runs, [run_point(run, {}) for run in runs])


def _results(runs: Sequence[Run], points: Sequence[RunPoint]) -> list[Result]:
    rows = []
    for name, measure in MEASURES.items():
        values = [None if run.state == RunState.OOM else measure.value(p) for run, p in zip(runs, points, strict=True)]
        if any(value is not None for value in values):
            rows.append(_result(name, measure, runs, values))
    return rows


def _result(name: str, measure: Measure, runs: Sequence[Run], values: Sequence[float | None]) -> Result:
    is_unscaled = measure.is_as_it_is
    unit = Unit(1.0, measure.unit, measure.unit) if is_unscaled else unit_for(values, measure.unit)
    finished = [v for run, v in zip(runs, values, strict=True) if v is not None and run.state == RunState.FINISHED]
    best = (min if measure.least_is_best else max)(finished) if len(finished) > 1 else None
    # Of equal values, only the first is marked as the best.
    best_index = next((n for n, v in enumerate(values) if v == best and runs[n].state == RunState.FINISHED), None)
    cells = [
        ResultCell(
            "OOM" if run.state == RunState.OOM else significant(None if value is None else value / unit.factor),
            run.reason if value is None else f"{value!r} {measure.unit}",
            best is not None and index == best_index,
            _relative(value, values[0]) if index else "",
        )
        for index, (run, value) in enumerate(zip(runs, values, strict=True))
    ]
    return Result(name, measure.title, unit.name, cells)


def _relative(value: float | None, first: float | None) -> str:
    if value is None or not first:
        return ""
    share = 100 * (value / first - 1)
    if abs(share) < 0.01:
        return "0 %"
    return f"{'+' if share > 0 else MINUS}{significant(abs(share))} %"
