"""Watches and their changes as the page Watch lists them, and one change in full."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from django.db.models import F, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from parlab.charts.format import quantity, signed_percent
from parlab.charts.runs.change import Change, Shown, change_figure, spark, unit_of
from parlab.charts.svg import Svg
from parlab.lab.models import Attempt, Config
from parlab.watch import selectors
from parlab.watch.analysis.measures import MEASURES, measure_of
from parlab.watch.kinds import kinds_of
from parlab.watch.models import Alert, Result, Watch
from parlab.watch.selectors import AlertRow, Between, Part

SPARK_RESULTS = 24
FIGURE_RESULTS = 60
MAX_WATCHES = 60
MAX_OFFERED = 3
MAX_MEASURES = 6
"""Other measures beside a change."""


class ListedAlert(NamedTuple):
    """A change as a line of the list."""

    row: AlertRow
    spark: Svg

    @property
    def title(self) -> str:
        return self.row.parts[0].title if self.row.parts else "Change"

    @property
    def size(self) -> str:
        return self.row.parts[0].size if self.row.parts else ""


class ListedWatch(NamedTuple):
    watch: Watch
    spark: Svg


class WatchList(NamedTuple):
    """What stands at the left of every page of watches."""

    open: list[ListedAlert]
    answered: list[ListedAlert]
    """Of this week."""
    watches: list[ListedWatch]
    offered: list[Config]
    """Configurations with results that nothing watches."""


def watch_list() -> WatchList:
    """Return the changes of the week and all watches, with their last results as dots."""
    alerts = selectors.week_alerts()
    watches = list(selectors.counted_watches()[:MAX_WATCHES])
    known = {row.alert.watch_id for row in alerts} | {watch.pk for watch in watches}
    results = _last_results(known)
    listed = [ListedAlert(row, _alert_spark(row, results)) for row in alerts]
    return WatchList(
        [row for row in listed if row.row.alert.is_open],
        [row for row in listed if not row.row.alert.is_open],
        [ListedWatch(watch, _watch_spark(results.get(watch.pk, []))) for watch in watches],
        _offered() if len(watches) < MAX_OFFERED else [],
    )


def _last_results(watches: Iterable[int]) -> dict[int, list[Result]]:
    """Return the last results of each watch and point in their order."""
    number = Window(
        RowNumber(),
        partition_by=[F("watch"), F("series")],
        order_by=[F("position").desc(), F("at").desc(), F("pk").desc()],
    )
    rows = Result.objects.filter(watch__in=list(watches)).annotate(number=number).filter(number__lte=SPARK_RESULTS)
    found: dict[int, list[Result]] = defaultdict(list)
    for result in rows.order_by("position", "at", "pk").defer("environment"):
        found[result.watch_id].append(result)
    return found


def _values(results: Iterable[Result], point: str, measure: str) -> list[tuple[Result, float]]:
    own = (result for result in results if result.series == point)
    return [(result, value) for result in own if (value := result.values.get(measure)) is not None]


def _alert_spark(row: AlertRow, results: Mapping[int, Sequence[Result]]) -> Svg:
    largest = row.alert.largest
    if not largest:
        return Svg()
    rows = _values(results.get(row.alert.watch_id, []), largest["series"], largest["measure"])
    at = _place(rows, row.alert.first_bad_id)
    return spark([value for _, value in rows], at, "Last results", is_worse=row.alert.is_worse)


def _place(rows: Sequence[tuple[Result, float]], first_bad: int) -> int | None:
    return next((number for number, (result, _) in enumerate(rows) if result.pk == first_bad), None)


def _watch_spark(results: Sequence[Result]) -> Svg:
    if not results:
        return Svg()
    last = results[-1]
    measure = next(iter(last.values), "")
    return spark([value for _, value in _values(results, last.series, measure)], None, "Last results")


def _offered() -> list[Config]:
    """Return the newest configurations with finished runs that no watch has."""
    watched = Watch.objects.exclude(config=None).values("config")
    ended = Config.objects.filter(runs__state="finished", experiment__archived_at=None).exclude(pk__in=watched)
    rows = ended.select_related("experiment").only("version", "experiment__name", "experiment__slug")
    return list(rows.order_by("-pk").distinct()[:MAX_OFFERED])


class Drawn(NamedTuple):
    """The series of a change."""

    figure: Svg
    unit: str
    commit: str
    """The first bad commit, if its results have commits."""
    kind: str
    """What changed by the evidence: code, software, noise, or several of them; empty if unknown."""


def drawn(alert: Alert, parts: Sequence[Part], between: Between) -> Drawn | None:
    """Draw the results around the largest change of an alert; None if its results are gone."""
    largest = alert.largest
    if not largest:
        return None
    results = alert.watch.results.filter(series=largest["series"]).order_by("position", "at", "pk")
    rows = _values(results.defer("environment"), largest["series"], largest["measure"])
    at = _place(rows, alert.first_bad_id)
    if at is None:
        return None
    begin = max(0, at - FIGURE_RESULTS // 2)
    shown = rows[begin : begin + FIGURE_RESULTS]
    place = at - begin
    part = parts[0]
    values = [value for _, value in shown]
    if place == 0:
        return None
    change = Change(place, part.size, part.interval, part.is_worse, median(values[:place]), median(values[place:]))
    unit = measure_of(largest["measure"]).unit
    figure = change_figure([_shown(result, value) for result, value in shown], unit, change, f"{part.title} by result")
    return Drawn(
        figure,
        unit_of(values, unit),
        alert.first_bad.commit[:7],
        kinds_of(alert, between, values[:place], values[place:]),
    )


def _shown(result: Result, value: float) -> Shown:
    where = f" on {result.node}" if result.node else ""
    at = timezone.localtime(result.at)
    return Shown(value, f"{at:%-d %b %H:%M}{where}", result.commit)


class OtherMeasure(NamedTuple):
    """Another measure over the same results."""

    title: str
    spark: Svg
    before: str
    after: str
    change: str
    """Empty where the watch found no change."""
    is_worse: bool


def other_measures(alert: Alert) -> list[OtherMeasure]:
    """Return the other measures of the results around a change: those that changed first, then the usual ones."""
    largest = alert.largest
    if not largest:
        return []
    changed = {part["measure"]: part for part in alert.parts if part["series"] == largest["series"]}
    results = _with_losses(alert.watch.results.filter(series=largest["series"]).order_by("position", "at", "pk"))
    names = dict.fromkeys(name for result in results for name in result.values if name != largest["measure"])
    ordered = sorted(names, key=lambda name: (name not in changed, _usual_place(name)))
    found = (_other_measure(alert, results, name, changed.get(name)) for name in ordered)
    return [measure for measure in found if measure is not None][:MAX_MEASURES]


def _with_losses(results: Iterable[Result]) -> list[Result]:
    """Return results with the last loss of their attempts, which a watch does not follow but a reader asks for."""
    rows = list(results)
    attempts = Attempt.objects.filter(run__in={row.run_id for row in rows if row.run_id})
    rows_of_attempts = attempts.values_list("run", "number", "summary__loss__last")
    losses: dict[tuple[int | None, int | None], Any] = {(run, number): loss for run, number, loss in rows_of_attempts}
    for row in rows:
        loss = losses.get((row.run_id, row.attempt_number))
        if isinstance(loss, int | float) and "loss" not in row.values:
            row.values = {**row.values, "loss": float(loss)}
    return rows


def _usual_place(name: str) -> int:
    usual = (*MEASURES, "loss")
    return usual.index(name) if name in usual else len(usual)


def _other_measure(
    alert: Alert, results: Sequence[Result], name: str, part: Mapping[str, Any] | None
) -> OtherMeasure | None:
    rows = _values(results, alert.largest["series"], name)
    at = _place(rows, alert.first_bad_id)
    if not at:
        return None
    begin = max(0, at - FIGURE_RESULTS // 2)
    values = [value for _, value in rows[begin : begin + FIGURE_RESULTS]]
    at -= begin
    measure = measure_of(name)
    before, after = (quantity(median(side), measure.unit) for side in (values[:at], values[at:]))
    return OtherMeasure(
        alert.watch.title_of(name),
        spark(values, at if part else None, f"{measure.title} by result", is_worse=bool(part and part["is_worse"])),
        before,
        after,
        signed_percent(part["size"]) if part else "",
        bool(part and part["is_worse"]),
    )
