"""What the pages of watches show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from django.db.models import Count, Max, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from parlab.charts.format import signed_percent, signed_range
from parlab.charts.runs import watched
from parlab.charts.theme import Drawing
from parlab.watch.analysis.environments import Difference, differences
from parlab.watch.analysis.measures import measure_of

from .detecting import is_worse, sentence_of
from .models import Alert, Commit, Result, Series, Watch

WEEK = timedelta(days=7)
MAX_ALERTS = 200
MAX_COMMITS = 100
SHOWN_POINTS = 1_000
ENDED = 2
"""Results without a measure after which it counts as missing."""


class SeriesRow(NamedTuple):
    """A series as a row of the page of a watch."""

    series: Series
    title: str
    last: float | None
    unit: str
    changes: int
    state: str


class Part(NamedTuple):
    """One measure of an alert, as text."""

    title: str
    point: str
    size: str
    interval: str
    is_worse: bool
    series_pk: int | None


class AlertRow(NamedTuple):
    """An alert as the lists show it."""

    alert: Alert
    text: str
    parts: list[Part]
    followers: Sequence[Alert] = ()
    """Alerts of other watches or nodes with the same cause, which the list does not show again."""


def counted_watches() -> QuerySet[Watch]:
    """Return all watches with `count` and `last` of their results, and the number of `open` alerts."""
    results = Result.objects.filter(watch=OuterRef("pk")).order_by().values("watch")
    return Watch.objects.select_related("config__experiment").annotate(
        count=Coalesce(Subquery(results.annotate(count=Count("pk")).values("count")), 0),
        last=Subquery(results.annotate(last=Max("at")).values("last")),
        open=Count("alerts", filter=Q(alerts__state__in=Alert.OPEN)),
    )


def alert_rows(alerts: Iterable[Alert]) -> list[AlertRow]:
    return [AlertRow(alert, sentence_of(alert), parts_of(alert)) for alert in alerts]


def parts_of(alert: Alert) -> list[Part]:
    """Return the measures of an alert, the largest change first."""
    keys = {(row.point, row.measure): row.pk for row in alert.watch.series.all()}
    return [
        Part(
            title=alert.watch.title_of(part["measure"]),
            point=part["series"],
            size=signed_percent(part["size"]),
            interval=signed_range(part["low"], part["high"]),
            is_worse=part["is_worse"],
            series_pk=keys.get((part["series"], part["measure"])),
        )
        for part in sorted(alert.parts, key=lambda part: -abs(part["size"]))
    ]


def week_alerts() -> list[AlertRow]:
    """Return the alerts of the last seven days and older open ones: open before answered, worse before better."""
    recent = Alert.objects.filter(created_at__gte=timezone.now() - WEEK) | Alert.objects.open()
    of_watch = ("watch__config__experiment", "watch__node", "watch__peer")
    related = (*of_watch, "first_bad__run__experiment", "last_good__run__experiment", "changed_by")
    alerts = recent.select_related(*related).prefetch_related("watch__series").order_by("-created_at")[:MAX_ALERTS]
    leaders = {alert.pk: alert for alert in alerts if alert.leader_id is None}
    followers: dict[int, list[Alert]] = {}
    rows = []
    for alert in alerts:
        leader = leaders.get(alert.leader_id or 0)
        if leader is not None and leader.is_open >= alert.is_open:
            followers.setdefault(leader.pk, []).append(alert)
        else:
            rows.append(alert)
    ordered = sorted(rows, key=lambda alert: (not alert.is_open, not alert.is_worse))
    return [row._replace(followers=followers.get(row.alert.pk, ())) for row in alert_rows(ordered)]


def series_rows(watch: Watch) -> list[SeriesRow]:
    """Return the series of a watch with the last value and what the detection says about each."""
    last: dict[tuple[str, str], float] = {}
    for result in watch.results.order_by("position", "at", "pk").defer("environment"):
        for measure, value in result.values.items():
            last[result.series, measure] = value
    rows = []
    for series in watch.series.all():
        measure = measure_of(series.measure)
        rows.append(
            SeriesRow(
                series, watch.title_of(series.measure), last.get((series.point, series.measure)), measure.unit,
                len(series.changes), state_of(series),
            )
        )  # fmt: skip
    return rows


def input_notes(watch: Watch) -> list[str]:
    """Return what is unusual about the results of a watch and how it counts."""
    repeated = (
        watch.results.exclude(commit="").values("commit", "series").annotate(count=Count("pk")).filter(count__gt=1)
    )
    commits = len({row["commit"] for row in repeated.order_by()})
    notes = missing_measures(watch)
    if commits:
        notes.append(f"{commits} commit{'s have' if commits > 1 else ' has'} several results; each counts as a repeat")
    return notes


def missing_measures(watch: Watch) -> list[str]:
    """Return which measures ended and which began with the same result, as after a renaming."""
    notes = []
    results = list(watch.results.order_by("position", "at", "pk").defer("environment"))
    for point in dict.fromkeys(result.series for result in results):
        own = [result for result in results if result.series == point]
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for at, result in enumerate(own):
            for measure in result.values:
                first.setdefault(measure, at)
                last[measure] = at
        for measure in [name for name, at in last.items() if at < len(own) - ENDED]:
            heirs = [name for name, at in first.items() if last[measure] < at <= last[measure] + ENDED]
            text = f"{measure} is missing since {own[last[measure] + 1].at:%Y-%m-%d %H:%M}"
            rename = f"; {', '.join(heirs)} began then: if it was renamed, its series begins anew" if heirs else ""
            notes.append(text + rename)
    return notes


def state_of(series: Series) -> str:
    """Return in one line what the detection knows about a series: certain, possible, too few results."""
    if series.suspicion:
        needed = series.suspicion["needed"]
        text = f"possible change of {signed_percent(series.suspicion['size'])}"
        return f"{text}; about {needed} more result{'s' if needed != 1 else ''} needed to be certain"
    waiting = next((note for note in series.notes if "needed" in note), "")
    return waiting or "no change since" * bool(series.changes) + "no change" * (not series.changes) + _since(series)


def _since(series: Series) -> str:
    return f" the last one ({signed_percent(series.changes[-1]['size'])})" if series.changes else ""


def series_figure(series: Series) -> Drawing:
    """Draw a series with its levels and changes."""
    measure = measure_of(series.measure)
    results = list(
        series.watch.results.filter(series=series.point).order_by("position", "at", "pk").defer("environment")
    )
    numbered = [(at, result, result.values.get(series.measure)) for at, result in enumerate(results)]
    usable = [(at, result, value) for at, result, value in numbered if value is not None][-SHOWN_POINTS:]
    points = [
        watched.Point(at + 1, value, f"{result.at:%Y-%m-%d %H:%M}", result.node, result.commit[:10])
        for at, result, value in usable
    ]
    first = usable[0][0] if usable else 0
    places = [change for change in series.changes if change["at"] >= first]
    breaks = [first, *(change["at"] for change in places if not change["node"]), len(results)]
    levels = []
    for begin, end in pairwise(breaks):
        inside = [value for at, _, value in usable if begin <= at < end]
        if inside:
            levels.append(watched.Level(begin + 1, end, median(inside)))
    steps = [
        watched.Step(
            change["at"] + 1,
            f"{signed_percent(change['size'])}{' on ' + change['node'] if change['node'] else ''}",
            is_worse(series.measure, change["size"]),
        )
        for change in places
    ]
    title = series.watch.title_of(series.measure)
    title = f"{title}, {series.point}" if series.point else title
    return watched.figure(title, measure.unit, points, levels, steps)


class Between(NamedTuple):
    """What lies between the last good and the first bad result of an alert."""

    commits: list[Commit]
    more_commits: int
    environment: list[Difference]
    results: int
    """Results between the two."""


def between(alert: Alert) -> Between:
    """Return what changed between the last good and the first bad result: commits, environment, node."""
    good, bad = alert.last_good, alert.first_bad
    commits: list[Commit] = []
    if alert.watch.repository and good.position and bad.position:
        rows = alert.watch.commits.filter(position__gt=good.position, position__lte=bad.position)
        commits = list(rows.order_by("-position"))
    rows_between = alert.watch.results.filter(at__gt=good.at, at__lt=bad.at, series=bad.series).count()
    changes = differences(_environment(good), _environment(bad))
    return Between(commits[:MAX_COMMITS], max(len(commits) - MAX_COMMITS, 0), changes, rows_between)


def _environment(result: Result) -> dict[str, Any]:
    return {"commit": result.commit, "node": result.node, **result.environment}
