"""Find the commit that made a change, by runs: each step is repeated until it is certain.

The state of a search is in the results of its commits: it continues wherever it was interrupted, and uses
results that were measured for any other reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from statistics import fmean, median
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Attempt

from .models import Alert, Bisect, Commit, Order, Watch
from .ordering import order_place

LEAST = 3
"""Results of a commit before it is judged."""
MOST = 12
"""Results of a commit after which the search ends without a verdict."""
CERTAIN = 3.0
"""Standard errors by which a commit differs from the good or the bad level."""


class Step(NamedTuple):
    """A commit with the results of its runs, and their verdict."""

    commit: Commit
    results: int
    level: float | None
    verdict: str
    """good, bad, or empty while it is not certain."""


class Cost(NamedTuple):
    """What a search costs, as far as it is known before it starts."""

    commits: int
    steps: int
    runs: int
    duration: timedelta | None


def bisect_cost(alert: Alert) -> Cost:
    """Estimate the runs and the time of a search; raise ValueError."""
    part, commits = alert.largest, _range(alert)
    values = _values(alert.watch, part.get("series", ""), part.get("measure", ""))
    steps = max(math.ceil(math.log2(max(len(commits) - 1, 1))), 0)
    ends = sum(max(LEAST - len(values.get(end.sha, [])), 0) for end in (commits[0], commits[-1]))
    runs = steps * LEAST + ends
    rows = Attempt.objects.filter(run__watch_results__watch=alert.watch).order_by("-pk")
    times = [
        (end - start).total_seconds()
        for start, end in rows.values_list("started_at", "ended_at")[:50]
        if start is not None and end is not None
    ]
    duration = timedelta(seconds=round(median(times) * runs)) if times else None
    return Cost(len(commits) - 1, steps, runs, duration)


def _range(alert: Alert) -> list[Commit]:
    """Return the commits from the last good to the first bad one."""
    watch, good, bad = alert.watch, alert.last_good, alert.first_bad
    if not watch.repository or watch.config is None:
        raise ValueError("the watch has no repository; a bisection needs the commits between two results")
    rows = watch.commits.filter(position__gte=good.position, position__lte=bad.position).order_by("position")
    commits = list(rows)
    if not good.position or len(commits) < 2:
        raise ValueError("the results before and after the change have the same commit; compare their environments")
    return commits


@transaction.atomic
def bisect_start(*, alert: Alert, user: User, good: str = "", bad: str = "") -> Bisect:
    """Start to search the commit of an alert, optionally between two commits; a running search is returned."""
    commits, watch = _range(alert), alert.watch
    shas = list(watch.commits.order_by("position").values_list("sha", flat=True))
    good, bad = good or commits[0].sha, bad or commits[-1].sha
    for name, sha in (("good", good), ("bad", bad)):
        if sha not in shas:
            raise ValueError(f"{name} {sha[:40]!r} is no commit of the watched branch; use a full SHA of it")
    if shas.index(good) >= shas.index(bad):
        raise ValueError(f"good {good[:10]} does not come before bad {bad[:10]}; exchange them")
    part = alert.largest
    return _running(alert) or Bisect.objects.create(
        alert=alert, series=part["series"], measure=part["measure"], good=good, bad=bad, created_by=user
    )


def _running(alert: Alert) -> Bisect | None:
    return alert.bisects.filter(state__in=[Bisect.State.RUNNING, Bisect.State.PAUSED]).first()


def bisect_switch(*, bisect: Bisect, state: str) -> bool:
    """Pause or resume a search; return whether its state changed."""
    origin = Bisect.State.RUNNING if state == Bisect.State.PAUSED else Bisect.State.PAUSED
    return bool(Bisect.objects.filter(pk=bisect.pk, state=origin).update(state=state))


def steps_of(bisect: Bisect) -> list[Step]:
    """Return the commits of a search with results, in their order."""
    values = _values_of(bisect)
    ends = values.get(bisect.good, []), values.get(bisect.bad, [])
    rows = _commits(bisect)
    return [
        Step(
            commit,
            len(values.get(commit.sha, [])),
            math.exp(fmean(values[commit.sha])) if commit.sha in values else None,
            "good" if commit.sha == bisect.good else "bad" if commit.sha == bisect.bad
            else verdict_of(values.get(commit.sha, []), *ends),
        )
        for commit in rows
        if commit.sha in values or commit.sha in (bisect.good, bisect.bad)
    ]  # fmt: skip


def _commits(bisect: Bisect) -> list[Commit]:
    """Return all commits of a search from the good to the bad one."""
    rows = list(bisect.alert.watch.commits.order_by("position"))
    shas = [commit.sha for commit in rows]
    if bisect.good not in shas or bisect.bad not in shas:
        raise ValueError("the branch was rewritten and no longer contains the commits; start a new bisection")
    return rows[shas.index(bisect.good) : shas.index(bisect.bad) + 1]


def _values_of(bisect: Bisect) -> dict[str, list[float]]:
    return _values(bisect.alert.watch, bisect.series, bisect.measure)


def _values(watch: Watch, series: str, measure: str) -> dict[str, list[float]]:
    """Return the logarithms of the results of each commit."""
    values: dict[str, list[float]] = {}
    for result in watch.results.filter(series=series).exclude(commit=""):
        value = result.values.get(measure)
        if value:
            values.setdefault(result.commit, []).append(math.log(value))
    return values


def verdict_of(values: Sequence[float], good: Sequence[float], bad: Sequence[float]) -> str:
    """Return good or bad if results are certainly nearer to one level than to the other, else an empty text."""
    if min(len(values), len(good), len(bad)) < LEAST:
        return ""
    groups = [_without_extremes(group) for group in (values, good, bad)]
    squares = sum((value - fmean(group)) ** 2 for group in groups for value in group)
    spread = max(math.sqrt(squares / (sum(map(len, groups)) - 3)), 1e-4)
    own, low, high = (fmean(group) for group in groups)
    error = spread * math.sqrt(1 / len(groups[0]) + 1 / min(len(groups[1]), len(groups[2])))
    distances = {"good": abs(own - low), "bad": abs(own - high)}
    nearest, other = sorted(distances, key=lambda name: distances[name])
    return nearest if distances[other] - distances[nearest] > CERTAIN * error else ""


def _without_extremes(values: Sequence[float]) -> list[float]:
    """Leave out the slowest of five or more results: a disturbed run must not decide."""
    centre = median(values)
    ordered = sorted(values, key=lambda value: abs(value - centre))
    return ordered[: -1 if len(ordered) > 4 else None]


def bisect_advance(*, bisect: Bisect) -> Bisect:
    """Order the next runs of a search, or end it; may be called at any time."""
    if bisect.state != Bisect.State.RUNNING:
        return bisect
    watch = bisect.alert.watch
    if watch.orders.filter(state=Order.State.OPEN).exists():
        return bisect
    failed = watch.orders.filter(state=Order.State.FAILED, created_at__gte=bisect.created_at).first()
    try:
        commits = _commits(bisect)
        if failed is not None:
            return _end(bisect, Bisect.State.FAILED, f"commit {failed.commit[:10]}: {failed.problem}")
        return _next(bisect, commits, _values_of(bisect))
    except ValueError as error:
        return _end(bisect, Bisect.State.FAILED, str(error))


def _next(bisect: Bisect, commits: Sequence[Commit], values: Mapping[str, list[float]]) -> Bisect:
    good, bad = (values.get(sha, []) for sha in (bisect.good, bisect.bad))
    for end, own in ((commits[0], good), (commits[-1], bad)):
        if len(own) < LEAST:
            return _order(bisect, end, LEAST - len(own))
    if not verdict_of(bad, good, bad):
        if max(len(good), len(bad)) >= MOST:
            reason = "good and bad commit do not differ certainly; the change may be one of the machine"
            return _end(bisect, Bisect.State.FAILED, reason)
        fewer = commits[0] if len(good) <= len(bad) else commits[-1]
        return _order(bisect, fewer, 2)
    low, high = 0, len(commits) - 1
    while high - low > 1:
        middle = (low + high) // 2
        own = values.get(commits[middle].sha, [])
        verdict = verdict_of(own, good, bad)
        if not verdict:
            if len(own) >= MOST:
                reason = f"commit {commits[middle].sha[:10]} is neither good nor bad after {len(own)} results"
                return _end(bisect, Bisect.State.FAILED, reason)
            return _order(bisect, commits[middle], 2 if own and len(own) >= LEAST else LEAST - len(own))
        low, high = (middle, high) if verdict == "good" else (low, middle)
    culprit = commits[high]
    Bisect.objects.filter(pk=bisect.pk).update(culprit=culprit.sha)
    return _end(bisect, Bisect.State.DONE, f"first bad commit: {culprit.sha[:10]} {culprit.subject}")


def _order(bisect: Bisect, commit: Commit, count: int) -> Bisect:
    reason = f"bisection {bisect.pk}"
    order_place(watch=bisect.alert.watch, count=count, reason=reason, commit=commit.sha, user=bisect.created_by)
    return bisect


def _end(bisect: Bisect, state: str, reason: str) -> Bisect:
    changes: dict[str, Any] = {"state": state, "reason": reason, "ended_at": timezone.now()}
    Bisect.objects.filter(pk=bisect.pk, state=Bisect.State.RUNNING).update(**changes)
    bisect.refresh_from_db()
    return bisect
