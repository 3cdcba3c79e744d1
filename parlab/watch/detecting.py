"""From the results of a watch to changes and alerts; every step may be repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db import transaction

from parlab.charts.format import signed_percent, signed_range
from parlab.lab.models import Event
from parlab.lab.services.events import event_add
from parlab.lab.services.inbox import item_open, items_close
from parlab.watch.analysis.measures import measure_of
from parlab.watch.analysis.tracks import Point, Track

from .causes import alert_join
from .models import Alert, Result, Series, Watch

NEAR = 3
"""Results by which the changes of one cause may be apart: measures differ in noise."""
SAME = 6
"""Results by which the place of a change may move when further results arrive."""
RECOVERED = 0.5
"""Share of a change that has to be undone before it counts as fixed."""


class _Shift(NamedTuple):
    """A change of a series with its results."""

    series: Series
    change: dict[str, Any]
    results: Sequence[Result]

    @property
    def is_worse(self) -> bool:
        return is_worse(self.series.measure, self.change["size"])


def is_worse(measure: str, size: float) -> bool:
    """Return whether a relative change of a measure is a change for the worse."""
    return (size > 0) == measure_of(measure).is_better_lower


@transaction.atomic
def watch_detect(*, watch: Watch) -> list[Alert]:
    """Search all series of a watch for changes and bring its alerts up to date; return the new alerts."""
    Watch.objects.select_for_update(no_key=True).get(pk=watch.pk)
    order = list(watch.results.order_by("position", "at", "pk").defer("environment"))
    places = {result.pk: at for at, result in enumerate(order)}
    by_point: dict[str, list[Result]] = {}
    for result in order:
        by_point.setdefault(result.series, []).append(result)
    changes: list[_Shift] = []
    nodes = _nodes(order)
    for point, results in by_point.items():
        for measure in dict.fromkeys(name for result in results for name in result.values):
            series, _ = Series.objects.get_or_create(watch=watch, point=point, measure=measure)
            _advance(series, results, nodes)
            changes += [_Shift(series, change, results) for change in series.changes]
    return _alerts(watch, changes, places)


def _nodes(results: Sequence[Result]) -> dict[int, str]:
    """Return the node of each result; other hardware under the same name is another node."""
    kinds: dict[str, list[str]] = {}
    names = {}
    for result in results:
        own = kinds.setdefault(result.node, [])
        if result.hardware and result.hardware not in own:
            own.append(result.hardware)
        number = own.index(result.hardware) + 1 if result.hardware else 1
        names[result.pk] = f"{result.node[:180]} (hardware {number})" if result.node and number > 1 else result.node
    return names


def _advance(series: Series, results: Sequence[Result], nodes: Mapping[int, str]) -> None:
    """Add the new results to a series; start again if earlier ones have changed or others came between them."""
    points = [Point(result.values.get(series.measure), nodes[result.pk]) for result in results]
    keys = [f"{result.pk}:{point.value}:{point.node}" for result, point in zip(results, points, strict=True)]
    if series.count == len(points) and series.digest == _digest(keys):
        return
    if series.state and series.count <= len(points) and series.digest == _digest(keys[: series.count]):
        track = Track.from_state(series.state)
        track.add(points[series.count :])
    else:
        track = Track()
        track.add(points)
    series.state, series.count, series.digest = track.state(), len(points), _digest(keys)
    series.changes = [change._asdict() for change in track.changes]
    suspicion = track.suspicion
    series.suspicion = suspicion._asdict() | {"result": results[suspicion.at].pk} if suspicion else {}
    series.notes = track.notes
    series.save()


def _digest(keys: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()


# --- alerts ----------------------------------------------------------------------------------------------------------


def _alerts(watch: Watch, changes: Sequence[_Shift], places: dict[int, int]) -> list[Alert]:
    alerts = list(watch.alerts.select_related("first_bad", "last_good").order_by("pk"))
    parts_of: dict[int, list[dict[str, Any]]] = {alert.pk: [] for alert in alerts}
    new: list[Alert] = []
    ordered = sorted(changes, key=lambda item: places[item.results[item.change["at"]].pk])
    for item in ordered:
        place = places[item.results[item.change["at"]].pk]
        alert = _same(item, alerts, place, places) or _of_cause(item, alerts, place, places)
        if alert is None and _fixes(item, alerts):
            continue
        if alert is None:
            alert = _create(watch, item)
            alerts.append(alert)
            parts_of[alert.pk] = []
            new.append(alert)
        parts_of[alert.pk].append(_part(item))
    for alert in alerts:
        _store(alert, parts_of[alert.pk])
    for alert in new:
        alert.refresh_from_db()
        if alert_join(alert) is None:
            _announce(alert)
    return new


def _part(item: _Shift) -> dict[str, Any]:
    change = item.change
    return {
        "series": item.series.point, "measure": item.series.measure, "size": change["size"], "low": change["low"],
        "high": change["high"], "kind": change["kind"], "is_worse": item.is_worse,
        "first_bad": item.results[change["at"]].pk, "last_good": item.results[change["last_good"]].pk,
    }  # fmt: skip


def _same(item: _Shift, alerts: Sequence[Alert], place: int, places: dict[int, int]) -> Alert | None:
    """Return the alert that already contains a change, whose place may have moved a little."""
    for alert in alerts:
        for part in alert.parts:
            is_series = (part["series"], part["measure"]) == (item.series.point, item.series.measure)
            is_near = part["first_bad"] in places and abs(places[part["first_bad"]] - place) <= SAME
            if is_series and is_near and part["is_worse"] == item.is_worse:
                return alert
    return None


def _of_cause(item: _Shift, alerts: Sequence[Alert], place: int, places: dict[int, int]) -> Alert | None:
    """Return the alert whose change happened at the same place, to the same nodes."""
    bad = item.results[item.change["at"]]
    for alert in alerts:
        if alert.node != item.change["node"] or alert.first_bad_id not in places:
            continue
        if any(_is_opposite(part, item) for part in alert.parts):
            continue
        is_commit = bool(bad.commit) and alert.first_bad.commit == bad.commit
        if is_commit or abs(places[alert.first_bad_id] - place) <= NEAR:
            return alert
    return None


def _fixes(item: _Shift, alerts: Sequence[Alert]) -> bool:
    """Mark the open alerts that a change for the better undoes as fixed; return whether there are any."""
    if item.is_worse:
        return False
    has_fixed = False
    bad = item.results[item.change["at"]]
    for alert in alerts:
        if not alert.is_worse or alert.node != item.change["node"]:
            continue
        if alert.fixed_by_id is not None and alert.fixed_by is not None:
            at = [result.pk for result in item.results]
            has_fixed |= alert.fixed_by_id in at and abs(at.index(alert.fixed_by_id) - item.change["at"]) <= SAME
            continue
        part = next((row for row in alert.parts if _is_undone(row, item)), None)
        if part is None or not alert.is_open:
            continue
        text = f"fixed: {measure_of(part['measure']).title.lower()} {signed_percent(item.change['size'])} again"
        commit = f" with commit {bad.commit[:10]}" if bad.commit else ""
        Alert.objects.filter(pk=alert.pk, state__in=Alert.OPEN).update(
            state=Alert.State.FIXED, reason=f"{text}{commit}", fixed_by=bad
        )
        items_close(keys=[ITEM.format(alert.pk)], reason=f"{text}{commit}")
        alert.refresh_from_db()
        has_fixed = True
    return has_fixed


def _is_undone(part: dict[str, Any], item: _Shift) -> bool:
    if (part["series"], part["measure"]) != (item.series.point, item.series.measure):
        return False
    return bool(abs(item.change["size"]) >= RECOVERED * abs(part["size"]))


def _is_opposite(part: dict[str, Any], item: _Shift) -> bool:
    """Return whether a part is the other direction of a change in the same series, so that it has another cause."""
    is_series = (part["series"], part["measure"]) == (item.series.point, item.series.measure)
    return is_series and part["is_worse"] != item.is_worse


def _create(watch: Watch, item: _Shift) -> Alert:
    change = item.change
    alert = Alert.objects.create(
        watch=watch,
        first_bad=item.results[change["at"]],
        last_good=item.results[change["last_good"]],
        kind=change["kind"],
        node=change["node"],
        is_worse=item.is_worse,
        parts=[_part(item)],
    )
    return Alert.objects.select_related("first_bad", "last_good").get(pk=alert.pk)


def _store(alert: Alert, parts: list[dict[str, Any]]) -> None:
    """Store the parts of an alert; one without any was raised by results that were corrected since."""
    if not parts:
        reason = "the results that raised it were corrected; without them there is no change"
        Alert.objects.filter(pk=alert.pk, state__in=Alert.OPEN).update(state=Alert.State.WRONG, reason=reason)
        items_close(keys=[ITEM.format(alert.pk)], reason=reason)
        return
    # The most certain part names the place: the narrowest interval relative to its size.
    best = min(parts, key=lambda part: (part["high"] - part["low"]) / max(abs(part["size"]), 1e-9))
    Alert.objects.filter(pk=alert.pk).update(
        parts=parts,
        first_bad=best["first_bad"],
        last_good=best["last_good"],
        is_worse=any(part["is_worse"] for part in parts),
        kind=best["kind"],
    )


ITEM = "watch.alert/{}"
"""Key of the inbox item of an alert."""
_DRAWN = 20
"""Results on either side of a change that the picture of the evidence shows."""


def _item_open(alert: Alert) -> None:
    """Ask for a decision about a change for the worse."""
    part = alert.largest
    bad = alert.first_bad
    item_open(
        kind=Event.Kind.WATCH_ALERT,
        key=ITEM.format(alert.pk),
        path=alert.get_absolute_url(),
        experiment=alert.watch.config.experiment if alert.watch.config else None,
        run_id=bad.run_id,
        data={
            "watch": alert.watch.name,
            "measure": alert.watch.title_of(part["measure"]),
            "unit": measure_of(part["measure"]).unit,
            "size": part["size"],
            "low": part["low"],
            "high": part["high"],
            "node": alert.node,
            "commit": bad.commit,
            "is_one_commit": bool(bad.commit) and _is_next(alert),
            **_values(alert, part),
        },
    )


def _is_next(alert: Alert) -> bool:
    """Return whether no commit lies between the last good and the first bad result."""
    between = alert.watch.commits.filter(sha__in=[alert.first_bad.commit, alert.last_good.commit])
    places = list(between.values_list("position", flat=True))
    return len(places) < 2 or max(places) - min(places) <= 1


def _values(alert: Alert, part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results around a change."""
    rows = alert.watch.results.filter(series=part["series"]).order_by("position", "at", "pk")
    listed = [(pk, values.get(part["measure"])) for pk, values in rows.values_list("pk", "values")]
    listed = [(pk, value) for pk, value in listed if value is not None]
    at = next((place for place, (pk, _) in enumerate(listed) if pk == part["first_bad"]), len(listed))
    first = max(0, at - _DRAWN)
    return {"values": [value for _, value in listed[first : at + _DRAWN]], "change_at": at - first}


def _announce(alert: Alert) -> None:
    """Store the event of a new alert, unless its watch is muted; parlab.notify delivers it."""
    if alert.watch.is_muted:
        return
    if alert.is_worse:
        _item_open(alert)
    event_add(
        kind=Event.Kind.WATCH_ALERT,
        text=sentence_of(alert),
        path=alert.get_absolute_url(),
        experiment=alert.watch.config.experiment if alert.watch.config else None,
        run=alert.first_bad.run,
        data={
            "watch": alert.watch.name,
            "alert": alert.pk,
            "is_worse": alert.is_worse,
            "node": alert.node,
            "first_bad": {"at": alert.first_bad.at.isoformat(), "commit": alert.first_bad.commit},
            "last_good": {"at": alert.last_good.at.isoformat(), "commit": alert.last_good.commit},
            "parts": alert.parts,
        },
    )


def sentence_of(alert: Alert) -> str:
    """Return an alert as one sentence: what, how much, since when."""
    part = alert.largest
    if not part:
        return f"{alert.watch.name}: no change remains"
    point = f" of {part['series']}" if part["series"] else ""
    where = f" on node {alert.node}" if alert.node else ""
    bad = alert.first_bad
    commit = next((row for row in alert.watch.commits.filter(sha=bad.commit)), None) if bad.commit else None
    since = f"commit {commit.sha[:10]} ({commit.subject})" if commit else f"{bad.at:%Y-%m-%d %H:%M} UTC"
    more = len(alert.parts) - 1
    others = f", and {more} more measure{'s' if more > 1 else ''}" if more else ""
    interval = signed_range(part["low"], part["high"])
    change = f"{alert.watch.title_of(part['measure'])}{point} {signed_percent(part['size'])} ({interval})"
    return f"{alert.watch.name}: {change}{where}{others} since {since}"
