"""The queue of the nodes: what runs until when, what waits for what; without either, the runs of the last day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple

from django.contrib.auth.models import User
from django.urls import reverse
from django.utils import timezone

from parlab.charts.cluster.clock import Clock
from parlab.charts.cluster.queue import Closed, Row, Span, queue_figure
from parlab.charts.format import duration
from parlab.charts.svg import Svg
from parlab.fleet.forecast import Stay, queue_forecast
from parlab.lab.models import Node, ProjectPool, Run
from parlab.lab.models.access.viewer import is_shown
from parlab.lab.services.access.rights import project_of, viewer_for
from runners.wire.protocol import RunState

MAX_ROWS = 12
MAX_CLOSED = 6
RECENT = timedelta(hours=24)
MAX_RECENT = 400
KINDS = {
    RunState.RUNNING: "run-running",
    RunState.FINISHED: "run-finished",
    RunState.OOM: "run-oom",
    RunState.FAILED: "run-failed",
    RunState.LOST: "run-failed",
    RunState.TIME_LIMIT: "run-failed",
    RunState.PREEMPTED: "run-failed",
    RunState.CHECKPOINTED: "run-finished",
}
"""Classes of the colours of runs, by state."""
OTHER = "run-queued"
_NAMES = {RunState.OOM: "OOM", RunState.TIME_LIMIT: "time limit"}


class Waiting(NamedTuple):
    run: Run
    reason: str
    starts: str
    """`Starts about 14:10.`; empty if that cannot be said."""


class Queue(NamedTuple):
    """The queue as a figure, and the sentence above it."""

    figure: Svg | str
    about: str
    """What the figure shows."""
    running: int
    waiting: int
    own: Waiting | None
    """The first run of the person that waits, else of anybody."""
    more: int
    """Rows that are not shown."""
    states: list[tuple[str, str]]
    """Classes and names of the colours."""


def local_clock(now: datetime) -> Clock:
    """Return the time zone of the page."""
    offset = timezone.localtime(now).utcoffset()
    return Clock(offset.total_seconds() if offset else 0.0)


def queue_of(nodes: Sequence[Node], user: User, now: datetime) -> Queue:
    forecast = (stay for own in queue_forecast(nodes, now).values() for stay in own)
    stays = [stay for stay in forecast if is_shown(project_of(stay.run))]
    running = sum(not stay.is_waiting for stay in stays)
    if not stays:
        return _recent(now)
    places = {stay.run.pk: place for place, stay in enumerate(stays[:MAX_ROWS])}
    rows = [
        _row(stay, user, now)._replace(after=places.get(stay.after.pk) if stay.after else None)
        for stay in stays[:MAX_ROWS]
    ]
    counted = "GPUs" if _has_gpus(nodes) else "Ranks"
    figure = queue_figure(rows, now.timestamp(), local_clock(now), counted, _closed(nodes, user))
    states = [("run-running", "running"), ("run-queued", "waiting")]
    waiting = len(stays) - running
    about = "ends from the measured step times, pale: expected"
    return Queue(figure, about, running, waiting, _own(stays, user), max(0, len(stays) - MAX_ROWS), states)


def _has_gpus(nodes: Sequence[Node]) -> bool:
    return any(node.hardware.get("gpus") for node in nodes)


def _closed(nodes: Sequence[Node], user: User) -> list[Closed]:
    """Return the nodes that take no runs, and the pools that projects have reserved, as far as the person sees them."""
    rows = [
        Closed(node.name, str(len(node.hardware.get("gpus") or ())), reverse("node", args=[node.name]), reason)
        for node in nodes
        if (reason := _why_closed(node))
    ]
    pools = {node.pool for node in nodes}
    seen = {project.slug: project.name for project in viewer_for(user).seen}
    reserved = ProjectPool.objects.filter(pool__in=pools).select_related("project").order_by("pool")
    for row in reserved:
        count = sum(len(node.hardware.get("gpus") or ()) for node in nodes if node.pool == row.pool)
        owner = seen.get(row.project.slug, "another project")
        rows.append(Closed(f"pool {row.pool}", str(count), f"{reverse('nodes')}#{row.pool}", f"reserved for {owner}"))
    return rows[:MAX_CLOSED]


def _why_closed(node: Node) -> str:
    if node.left_out:
        return f"left out: {node.left_out}"
    return "drains: no new runs" if node.is_draining else "" if node.is_enabled else "disabled: no new runs"


def _own(stays: Sequence[Stay], user: User) -> Waiting | None:
    waiting = [stay for stay in stays if stay.is_waiting and stay.reason]
    own = [stay for stay in waiting if stay.run.created_by_id == user.pk]
    first = next(iter([*own, *waiting]), None)
    if first is None:
        return None
    starts = f"Starts about {_clock(first.starts)}." if first.starts is not None and not first.planned else ""
    if starts and first.after is not None and is_shown(project_of(first.after)):
        starts = f"Starts about {_clock(first.starts)}, after {first.after.experiment.name} #{first.after.number}."
    return Waiting(first.run, first.reason, starts)


def _clock(at: datetime | None) -> str:
    return "" if at is None else f"{timezone.localtime(at):%H:%M}"


def _row(stay: Stay, user: User, now: datetime) -> Row:
    run = stay.run
    is_own = stay.is_waiting and run.created_by_id == user.pk
    note = stay.reason if stay.is_waiting and stay.starts is None else ""
    return Row(
        run.experiment.name, f" #{run.number}", str(stay.gpus), run.get_absolute_url(), [_span(stay, now)], is_own, note
    )


def _span(stay: Stay, now: datetime) -> Span:
    by = "by " if stay.is_limit else ""
    end = _clock(stay.ends)
    text = f"{by}{end}" if not stay.is_waiting else f"{_clock(stay.starts)}, {by}{end}" if stay.starts else ""
    waited = duration(((stay.starts or now) - stay.since).total_seconds(), coarse=True)
    title = f"{stay.run.experiment.name} #{stay.run.number}: {'waits' if stay.is_waiting else 'waited'} {waited}"
    title += f", ends {by or 'about '}{end}" if end else ""
    title += f", Slurm expects to start it at {_clock(stay.planned)}" if stay.planned else ""
    kind = OTHER if stay.is_waiting else KINDS[RunState.RUNNING]
    ends = (_at(stay.starts), _at(stay.ends))
    return Span(stay.since.timestamp(), *ends, kind, stay.is_waiting, text, title, _at(stay.planned))


def _at(when: datetime | None) -> float | None:
    return None if when is None else when.timestamp()


def _recent(now: datetime) -> Queue:
    """Return the runs of the last day by experiment, as nothing is on the nodes."""
    ended = Run.objects.filter(origin=Run.Origin.MEASURED, started_at__gte=now - RECENT, ended_at__isnull=False)
    runs = list(ended.select_related("experiment").order_by("-started_at")[:MAX_RECENT])
    runs.sort(key=lambda run: (run.experiment_id, run.started_at))
    groups = [list(own) for _, own in groupby(runs, key=lambda run: run.experiment_id)]
    groups.sort(key=lambda own: own[0].started_at or now)
    rows = [_past_row(own) for own in groups[-MAX_ROWS:]]
    states = [
        (kind, _NAMES.get(state, state.value))
        for state, kind in KINDS.items()
        if any(run.state == state for run in runs)
    ]
    figure = queue_figure(rows, now.timestamp(), local_clock(now), "Runs") if rows else ""
    return Queue(figure, "last 24 hours, dotted: waiting", 0, 0, None, max(0, len(groups) - MAX_ROWS), states)


def _past_row(runs: Sequence[Run]) -> Row:
    experiment = runs[0].experiment
    return Row(experiment.name, "", str(len(runs)), experiment.get_absolute_url(), [_past(run) for run in runs])


def _past(run: Run) -> Span:
    assert run.started_at is not None
    assert run.ended_at is not None
    waited, ran = run.started_at - run.queued_at, run.ended_at - run.started_at
    title = f"#{run.number} waited {duration(waited.total_seconds())}, ran {duration(ran.total_seconds())}, {run.state}"
    kind = KINDS.get(RunState(run.state), OTHER)
    since = run.queued_at if waited < RECENT else run.started_at
    return Span(since.timestamp(), run.started_at.timestamp(), run.ended_at.timestamp(), kind, False, "", title)
