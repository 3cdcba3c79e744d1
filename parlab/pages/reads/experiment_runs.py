"""The runs of an experiment as its list and its panels show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from parlab.charts.format import Unit, exact_quantity, field_title, field_value, in_column
from parlab.charts.measures import DEFAULT, MEASURES, Measure
from parlab.charts.panels.shown import ShownRun, ends, spread_of, unit_of, whisker
from parlab.charts.points import is_number
from parlab.charts.svg import Svg, line_key
from parlab.lab.models import Finding, Run
from parlab.lab.selectors.analysis.identities import Identity, identities, short_value
from parlab.lab.selectors.analysis.sweep import run_point

LONG_NAME = 16
MAX_LINES = 60
"""With more runs, panels draw the pinned ones, and a band for each group."""


class ListedRun(NamedTuple):
    run: Run
    shown: ShownRun
    text: str
    """The number that sorts the list, in the unit of its column."""
    note: str
    key: Svg
    whisker: Svg
    doubts: Sequence[Finding] = ()
    """Findings about the run and its numbers."""


class Group(NamedTuple):
    field: str
    title: str


class ListedRuns(NamedTuple):
    """The list of the runs of an experiment, the best first."""

    rows: list[ListedRun]
    measure: str
    """The name of the number in MEASURES; empty while no run has one."""
    unit: Unit
    measures: list[tuple[str, str]]
    """Names and titles of the numbers that the list can show."""
    groups: list[Group]

    @property
    def is_long(self) -> bool:
        """Whether names need a wider list."""
        return any(len(row.shown.name) > LONG_NAME for row in self.rows)

    @property
    def data(self) -> dict[str, Any]:
        """What the scripts of the page know of the runs."""
        return {
            "measure": self.measure,
            "maxLines": MAX_LINES,
            "groups": [group.field for group in self.groups],
            "runs": [_data(row) for row in self.rows],
        }


def shown_runs(runs: Sequence[Run], known: Mapping[int, Identity] | None = None) -> list[ShownRun]:
    """Return runs of one experiment with their looks, in their order; `known` are their identities, if already read."""
    own = identities(runs) if known is None else known
    return [_shown(run, own[run.pk]) for run in runs]


def _shown(run: Run, identity: Identity) -> ShownRun:
    texts = {field: short_value(field, value) for field, value in identity.values.items()}
    return ShownRun(
        run_point(run, dict(identity.values)),
        identity.name or f"#{run.number}",
        identity.look,
        identity.group,
        identity.values,
        texts,
    )


def listed_runs(runs: Sequence[Run], shown: Sequence[ShownRun], asked: str = "") -> ListedRuns:
    """Arrange runs as the list of their experiment, sorted by the number that is asked for or the first they have."""
    present = {
        name: measure
        for name, measure in MEASURES.items()
        if any(measure.value(one.point) is not None for one in shown)
    }
    name = asked if asked in present else next(iter(present), "")
    measure = MEASURES[name or DEFAULT]
    unit = unit_of(shown, measure)
    spreads = [spread_of(one, measure) for one in shown]
    scale = ends(spreads)
    rows = [
        ListedRun(run, one, *_number_texts(one, measure, unit), line_key(one.look), whisker(spread, scale, one.look))
        for run, one, spread in zip(runs, shown, spreads, strict=True)
    ]
    rows.sort(key=lambda row: _order(row, measure))
    titles = [(key, one.heading) for key, one in present.items()]
    fields = dict.fromkeys(field for one in shown for field in one.values)
    return ListedRuns(rows, name, unit, titles, [Group(field, field_title(field)) for field in fields])


def _number_texts(run: ShownRun, measure: Measure, unit: Unit) -> tuple[str, str]:
    """Return a number of a run as text, and with all digits."""
    value = measure.value(run.point)
    if value is None and run.point.state == "oom":
        return "OOM", "out of memory"
    return in_column(value, unit), exact_quantity(value, measure.unit)


def _order(row: ListedRun, measure: Measure) -> tuple[bool, float, int]:
    value = measure.value(row.shown.point)
    better = 0.0 if value is None else value if measure.least_is_best else -value
    return value is None, better, row.run.number


def _data(row: ListedRun) -> dict[str, Any]:
    shown = row.shown
    return {
        "n": row.run.number,
        "pk": row.run.pk,
        "name": shown.name,
        "state": row.run.state,
        "final": row.run.is_final,
        "look": list(shown.look),
        "groups": dict(shown.texts),
        "colour": shown.group,
        "find": _searched(row.run, shown.values),
    }


def _searched(run: Run, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the filter of the list looks at, by the names that a person may type."""
    searched: dict[str, Any] = {"state": run.state, "run": run.number, "gpus": run.gpus}
    for field, value in values.items():
        shown = value if is_number(value) else field_value(value)
        searched[field] = searched[field.rpartition(".")[2]] = shown
        first = short_value(field, value).partition(" ")[0].lower()
        if is_number(value) and first.isalpha():
            searched[first] = shown
    return searched
