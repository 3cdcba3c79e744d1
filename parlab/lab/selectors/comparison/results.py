"""A comparison of runs: different settings and results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from parlab.charts.fields import field_heading, label_of
from parlab.charts.format import DASH, MINUS, Unit, field_value, for_column, in_column, significant, unit_for
from parlab.charts.measures import MEASURES, Measure
from parlab.charts.points import RunPoint
from parlab.charts.repeats import count_of, percent, pooled, values_of, with_deviation
from parlab.findings.noise import Noise, is_within, noise
from parlab.lab.forms.config_layout import TITLES
from parlab.lab.models import Run
from parlab.lab.selectors.analysis.repeats import repeat_groups, with_repeats
from parlab.lab.selectors.analysis.sweep import run_point
from parlab.lab.selectors.records import run_settings
from runners.config import SEED
from runners.wire.protocol import RunState


class Difference(NamedTuple):
    """A field with different values, with the value of each run as text."""

    field: str
    title: str
    values: list[str]
    section: str = ""
    """Heading of its section, where the title alone does not say which field it is."""

    @property
    def words(self) -> str:
        return f"{self.title} ({self.section})" if self.section else self.title

    @property
    def is_of_one_run(self) -> bool:
        """Whether only one run states the field, so that there is nothing to compare."""
        return sum(value != DASH for value in self.values) == 1

    @property
    def only(self) -> tuple[int, str]:
        """The place of the first run that states the field, from 0, and its value."""
        return next((place, value) for place, value in enumerate(self.values) if value != DASH)


_MANY_SINGLE = 8
"""More fields that only one run states are folded."""


class ResultCell(NamedTuple):
    text: str
    note: str
    """All digits, or the reason why there is no number."""
    is_best: bool
    relative: str
    """Difference from the first run: `+12.3 %`."""
    is_noise: bool = False
    """Whether that difference is smaller than the noise."""


class Result(NamedTuple):
    """One measure of all runs, in one unit."""

    name: str
    title: str
    unit: str
    cells: list[ResultCell]
    noise: str = ""
    """What differences are noise, as text; empty if that is unknown."""


class Comparison(NamedTuple):
    runs: list[Run]
    """The runs; of pooled repeats the first."""
    groups: list[list[Run]]
    """Each of these runs, with its repeats where they are pooled."""
    differences: list[Difference]
    same: list[tuple[str, str]]
    """Fields with the same value in all runs."""
    results: list[Result]
    points: list[RunPoint]

    @property
    def compared(self) -> list[Difference]:
        """The differences of the table; many fields that only one run states are not among them."""
        folded = {difference.field for difference, _, _ in self.of_one_run}
        return [difference for difference in self.differences if difference.field not in folded]

    @property
    def of_one_run(self) -> list[tuple[Difference, int, str]]:
        """Fields that only one run states, with its number and the value, where they are many; else nothing."""
        single = [difference for difference in self.differences if difference.is_of_one_run]
        if len(single) <= _MANY_SINGLE:
            return []
        return [(difference, self.runs[difference.only[0]].number, difference.only[1]) for difference in single]

    @property
    def has_noise(self) -> bool:
        """Whether a difference is smaller than the noise."""
        return any(cell.is_noise for result in self.results for cell in result.cells)


def compare(runs: Sequence[Run], *, is_pooled: bool = False) -> Comparison:
    """Compare runs in the given order; differences are relative to the first run, or to the mean of its repeats."""
    groups = repeat_groups(runs) if is_pooled else [[run] for run in runs]
    first = [group[0] for group in groups]
    settings = [_settings(run, is_pooled=is_pooled) for run in first]
    names = sorted(dict.fromkeys(name for setting in settings for name in setting), key=_is_argument)
    differences: list[Difference] = []
    same: list[tuple[str, str]] = []
    shown: dict[str, list[str]] = {}
    for name in names:
        values = [field_value(setting[name]) if name in setting else DASH for setting in settings]
        first_of_name = shown.setdefault(label_of(name), values)
        if (_is_argument(name) or "." not in name) and _repeats(values, first_of_name):
            continue
        if len(set(values)) > 1:
            differences.append(Difference(name, field_heading(name), values))
        else:
            same.append((name, values[0]))
    varied = [difference.field for difference in differences]
    points = [
        pooled([run_point(run, {name: setting[name] for name in varied if name in setting}) for run in _ended(group)])
        for group, setting in zip(groups, settings, strict=True)
    ]
    return Comparison(first, groups, _told_apart(differences), same, _results(first, points, noises(runs)), points)


def _told_apart(differences: Sequence[Difference]) -> list[Difference]:
    """Name the section of arguments, and of fields whose titles are the same: `Nodes (Cluster)`."""
    counts = Counter(difference.title for difference in differences)
    return [
        difference._replace(section=_section(difference.field))
        if counts[difference.title] > 1 or _is_argument(difference.field)
        else difference
        for difference in differences
    ]


def _section(field: str) -> str:
    section = field.rpartition(".")[0]
    return TITLES.get(section, section)


def _is_argument(name: str) -> bool:
    return name.startswith("argument.")


def _repeats(values: Sequence[str], first: Sequence[str]) -> bool:
    """Whether an argument or a column of a table says nothing that another field of the same name does not."""
    return values is not first and all(value in (DASH, other) for value, other in zip(values, first, strict=True))


def _ended(group: Sequence[Run]) -> Sequence[Run]:
    """Return the repeats whose numbers count: those that finished, or the first if none has."""
    return [run for run in group if run.state == RunState.FINISHED] or group[:1]


def _settings(run: Run, *, is_pooled: bool) -> dict[str, Any]:
    """Return the settings of a run without unset fields; None is a value only where a program got it as an argument."""
    fields = {"gpus": int(run.gpus) if run.gpus else "unknown", **run_settings(run)}
    if is_pooled and SEED not in run.point:
        fields.pop(SEED, None)
    return {name: value for name, value in fields.items() if value is not None or _is_argument(name)}


def results(runs: Sequence[Run]) -> list[Result]:
    """Return the measures that at least one of the runs has."""
    return _results(runs, [run_point(run, {}) for run in runs], noises(runs))


def noises(runs: Sequence[Run]) -> Callable[[Measure], Noise | None]:
    """Return the noise of a measure over all repeats of these runs, also over those that are not compared."""
    measured = [run for run in with_repeats(runs) if run.state == RunState.FINISHED]
    groups = [[run_point(run, {}) for run in group] for group in repeat_groups(measured) if len(group) > 1]

    def noise_of_measure(measure: Measure) -> Noise | None:
        return noise([v for point in group if (v := measure.value(point)) is not None] for group in groups)

    return noise_of_measure


def _results(
    runs: Sequence[Run], points: Sequence[RunPoint], noise_of_measure: Callable[[Measure], Noise | None]
) -> list[Result]:
    rows = []
    for name, measure in MEASURES.items():
        if any(point.state != RunState.OOM and measure.value(point) is not None for point in points):
            rows.append(_result(name, measure, runs, points, noise_of_measure(measure)))
    return rows


def _column_unit(measure: Measure, values: Sequence[float | None], points: Sequence[RunPoint]) -> Unit:
    """Return the unit of a row of results, with the digits that files print."""
    unit = Unit(1.0, measure.unit, measure.unit) if measure.is_as_it_is else unit_for(values, measure.unit)
    are_printed = (point.is_printed and measure.is_stated for point in points)
    return for_column(unit, zip(values, are_printed, strict=True))


def _result(
    name: str, measure: Measure, runs: Sequence[Run], points: Sequence[RunPoint], noisy: Noise | None
) -> Result:
    values = [None if point.state == RunState.OOM else measure.value(point) for point in points]
    unit = _column_unit(measure, values, points)
    best = _best(measure, points, values)
    cells = []
    for index, (run, point, value) in enumerate(zip(runs, points, values, strict=True)):
        text = "OOM" if point.state == RunState.OOM else in_column(value, unit)
        repeats = values_of(point, measure.value) if point.repeats else []
        cells.append(
            ResultCell(
                with_deviation(text, repeats, unit.factor),
                run.reason if value is None else f"{value!r} {measure.unit}",
                index == best,
                _relative(value, values[0]) if index else "",
                bool(index) and is_within_noise(measure, points[0], point, noisy),
            )
        )
    return Result(name, measure.title, unit.name, cells, _noise_text(measure, points, noisy))


def _best(measure: Measure, points: Sequence[RunPoint], values: Sequence[float | None]) -> int | None:
    """Return the place of the best of at least two finished runs, of equal ones the first."""
    finished = [
        (value if measure.least_is_best else -value, index)
        for index, (point, value) in enumerate(zip(points, values, strict=True))
        if value is not None and point.state == "finished"
    ]
    return min(finished)[1] if len(finished) > 1 else None


def is_within_noise(measure: Measure, first: RunPoint, point: RunPoint, noisy: Noise | None) -> bool:
    """Whether two values differ by less than the noise of the repeats, or else of the steps."""
    base, value = measure.value(first), measure.value(point)
    if base is None or value is None or base == value or RunState.OOM in (first.state, point.state):
        return False
    if noisy is not None:
        return is_within(value, base, noisy, count_of(point), count_of(first))
    spread = _step_noise(measure, [first, point])
    return spread is not None and bool(base) and abs(value / base - 1) < spread


def _step_noise(measure: Measure, points: Sequence[RunPoint]) -> float | None:
    """Return half the range from p10 to p90 of the step times as a share, of the run that varies more."""
    if measure.kind == "other":
        return None
    shares = []
    for point in points:
        spread = point.step_time_s
        if spread is None or spread.p10 is None or spread.p90 is None or not spread.median:
            return None
        shares.append((spread.p90 - spread.p10) / spread.median / 2)
    return max(shares)


def _noise_text(measure: Measure, points: Sequence[RunPoint], noisy: Noise | None) -> str:
    if noisy is not None:
        return f"one run varies by {percent(noisy.deviation)} (standard deviation of the repeats)"
    spread = _step_noise(measure, points)
    return "" if spread is None else f"the steps of a run vary by up to ±{percent(spread)}"


def _relative(value: float | None, first: float | None) -> str:
    if value is None or not first:
        return ""
    share = 100 * (value / first - 1)
    if abs(share) < 0.01:
        return "0 %"
    return f"{'+' if share > 0 else MINUS}{significant(abs(share))} %"
