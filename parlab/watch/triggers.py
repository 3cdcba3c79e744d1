"""Occasions on which watches run their configuration again: time, commits, software of nodes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Node

from .commits import GitCommit, log_of, mirror_of
from .health import is_possible
from .models import Commit, Order, Result, Watch
from .ordering import order_place
from .schedules import next_time

MAX_NEW_COMMITS = 20
"""Commits of one look that are run; of more only the newest, the others by bisection."""


def schedule_check(*, watch: Watch, now: datetime | None = None) -> Order | None:
    """Order runs if the time of a watch has come; missed times count once."""
    now = now or timezone.now()
    if not watch.schedule or watch.next_at is None or watch.next_at > now:
        return None
    following = next_time(watch.schedule, watch.next_at, now)
    if not Watch.objects.filter(pk=watch.pk, next_at=watch.next_at).update(next_at=following):
        return None  # another worker was faster
    if not is_possible(watch):
        return None  # a node that is offline is measured on the next day
    return _placed(watch, f"schedule {watch.schedule}")


def nodes_check(*, watch: Watch) -> Order | None:
    """Order runs if the software of a node has changed since the last look."""
    if not watch.on_node_change:
        return None
    nodes = Node.objects.online()
    if watch.node_id is not None:
        nodes = nodes.filter(pk__in=[watch.node_id, watch.peer_id])
    current = {node.name: software_of(node) for node in nodes}
    changed = [
        f"{name}: {what} {before.get(what, 'none')} -> {software.get(what, 'none')}"
        for name, software in current.items()
        if (before := watch.software.get(name)) is not None
        for what in sorted({*software, *before})
        if software.get(what) != before.get(what)
    ]
    if watch.software != {**watch.software, **current}:
        Watch.objects.filter(pk=watch.pk).update(software={**watch.software, **current})
    return _placed(watch, f"node {'; '.join(changed)}") if changed else None


def software_of(node: Node) -> dict[str, Any]:
    """Return the versions of a node: packages, NCCL and the driver."""
    software = dict(node.abilities.get("software") or {}) if isinstance(node.abilities, dict) else {}
    driver = node.hardware.get("driver") if isinstance(node.hardware, dict) else ""
    return {**software, "driver": driver} if driver else software


def repository_check(*, watch: Watch) -> list[Order]:
    """Read the repository of a watch and order runs of its new commits; problems are stored with the watch."""
    if not watch.repository:
        return []
    try:
        log = log_of(watch.repository, watch.branch, mirror_of(watch.pk))
    except (ValueError, OSError) as error:
        Watch.objects.filter(pk=watch.pk).update(problem=str(error))
        return []
    new = commits_store(watch=watch, log=log)
    orders = [_placed(watch, f"commit {commit.subject}"[:300], commit.sha) for commit in new]
    return [order for order in orders if order is not None]


@transaction.atomic
def commits_store(*, watch: Watch, log: list[GitCommit]) -> list[GitCommit]:
    """Store the commits of a branch; return those to run: new ones, at first only the newest."""
    Watch.objects.select_for_update(no_key=True).get(pk=watch.pk)
    existing = {commit.sha: commit.position for commit in watch.commits.all()}
    positions = {commit.sha: at for at, commit in enumerate(log, start=1)}
    new = [commit for commit in log if commit.sha not in existing]
    if not new:
        return []
    if any(positions.get(sha) != position for sha, position in existing.items()):
        # The branch was rewritten: its order counts.
        watch.commits.all().delete()
        to_store = log
    else:
        to_store = new
    Commit.objects.bulk_create(
        [
            Commit(
                watch=watch, sha=row.sha, position=positions[row.sha], subject=row.subject, author=row.author, at=row.at
            )
            for row in to_store
        ],
        batch_size=500,
    )
    for sha, position in positions.items():
        Result.objects.filter(watch=watch, commit=sha).exclude(position=position).update(position=position)
    # Earlier runs of these commits have a place now.
    Watch.objects.filter(pk=watch.pk).update(checked_at=None)
    return new[-1:] if not existing else new[-MAX_NEW_COMMITS:]


def _placed(watch: Watch, reason: str, commit: str = "") -> Order | None:
    try:
        return order_place(watch=watch, count=watch.repeats, reason=reason, commit=commit)
    except ValueError as error:
        Watch.objects.filter(pk=watch.pk).update(problem=str(error))
        return None
