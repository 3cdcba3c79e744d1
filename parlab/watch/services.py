"""Services of watches: create, refresh, answer alerts."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from parlab.lab.models import Config, Experiment
from parlab.lab.models.access.viewer import home_project_id
from parlab.lab.services.access.rights import guard
from parlab.lab.services.inbox import item_reopen_by_key, items_close
from parlab.watch.analysis.histories import read_history

from .bisecting import bisect_advance
from .collecting import experiment_store, history_store, results_collect
from .commits import commit_of
from .detecting import ITEM, watch_detect
from .health import alert_follow, is_possible
from .models import Alert, Bisect, Order, Watch
from .ordering import order_place, orders_advance, suspicions_settle
from .repository_addresses import check_repository
from .schedules import first_time
from .triggers import nodes_check, repository_check, schedule_check

logger = logging.getLogger(__name__)

MAX_REPEATS = 20
REASON_LENGTH = 500


@transaction.atomic
def watch_create(
    *,
    name: str,
    user: User,
    config: Config | None = None,
    key: str = "",
    schedule: str = "",
    first_at: datetime | None = None,
    repository: str = "",
    branch: str = "",
    on_node_change: bool = False,
    repeats: int = 1,
    max_extra: int = 6,
) -> Watch:
    """Create a watch; raise ValueError with field, value and remedy."""
    if config is not None:
        guard(config)
    name, key = name.strip(), key.strip()
    if not name or len(name) > 120:
        raise ValueError(f"name {name[:40]!r} is empty or longer than 120 characters; choose another")
    if config is None and not key:
        raise ValueError("neither a configuration nor a key is given; choose a configuration, or enter a key")
    if config is None and (schedule or repository or on_node_change):
        raise ValueError("a schedule, a repository and node changes start runs; choose a configuration for them")
    project = home_project_id() if config is None else config.experiment.project_id
    if Watch.objects.filter(name=name, project=project).exists():
        raise ValueError(f"name {name!r} is taken; choose another")
    key = key or (config.digest if config else "")
    if Watch.objects.filter(key=key, project=project).exists():
        raise ValueError(f"key {key[:40]!r} belongs to another watch; choose another, or use that watch")
    _check_repeats(repeats, max_extra)
    if repository:
        _check_commits(repository, config)
    return Watch.objects.create(
        project_id=project,
        name=name,
        key=key[:200],
        config=config,
        schedule=schedule,
        next_at=first_time(schedule, first_at, timezone.now()) if schedule else None,
        repository=repository,
        branch=branch,
        on_node_change=on_node_change,
        repeats=repeats,
        max_extra=max_extra,
        created_by=user,
    )


def _check_repeats(repeats: int, max_extra: int) -> None:
    if not 1 <= repeats <= MAX_REPEATS:
        raise ValueError(f"repeats {repeats} is not between 1 and {MAX_REPEATS}; choose such a number")
    if not 0 <= max_extra <= MAX_REPEATS:
        raise ValueError(f"max_extra {max_extra} is not between 0 and {MAX_REPEATS}; choose such a number")


def _check_commits(repository: str, config: Config | None) -> None:
    check_repository(repository)
    if config is not None and not commit_of(config.data):
        raise ValueError(
            "the command of the configuration has no --commit; end command.argv with --commit and a commit, so that"
            " each commit can be run (docs/use/watch.md)"
        )


@transaction.atomic
def watch_delete(*, watch: Watch) -> None:
    """Delete a watch with its results and alerts; the inbox asks for no decisions about them any more."""
    items_close(keys=[ITEM.format(alert.pk) for alert in watch.alerts.all()], reason="the watch was deleted")
    watch.delete()


@transaction.atomic
def watch_refresh(*, watch: Watch) -> list[Alert]:
    """Collect new results and search them for changes; return the new alerts."""
    if results_collect(watch=watch) == 0 and watch.series.exists():
        return []
    alerts = watch_detect(watch=watch)
    for alert in alerts:
        alert_follow(alert=alert)
    return alerts


def watch_advance(*, watch: Watch) -> None:
    """Check the occasions of a watch, advance its orders and bisections, and search its results; may be repeated."""
    schedule_check(watch=watch)
    nodes_check(watch=watch)
    orders_advance(watch=watch)
    watch_refresh(watch=watch)
    for bisect in Bisect.objects.filter(alert__watch=watch, state=Bisect.State.RUNNING):
        bisect_advance(bisect=bisect)
    suspicions_settle(watch=watch)


def watch_run(*, watch: Watch, user: User) -> Order:
    """Order runs of a watch now; raise ValueError if it has no configuration."""
    if watch.repository:
        repository_check(watch=watch)
    if not is_possible(watch):
        raise ValueError("a node of the watch is offline; start its daemon")
    return order_place(watch=watch, count=watch.repeats, reason="by hand", user=user)


ANSWERS = {
    "acknowledge": Alert.State.ACKNOWLEDGED,
    "expect": Alert.State.EXPECTED,
    "reject": Alert.State.WRONG,
    "fix": Alert.State.FIXED,
    "reopen": Alert.State.NEW,
}


def watch_mute(*, watch: Watch, user: User, is_muted: bool) -> None:
    """Stop or resume announcing the changes of a watch; muting takes its open ones out of the inbox."""
    Watch.objects.filter(pk=watch.pk).update(is_muted=is_muted)
    watch.is_muted = is_muted
    keys = [ITEM.format(pk) for pk in watch.alerts.open().values_list("pk", flat=True)]
    if is_muted:
        items_close(keys=keys, reason="the watch is muted", user=user)
    else:
        for key in keys:
            item_reopen_by_key(key=key)
    logger.info("watch %s is %s by %s", watch.pk, "muted" if is_muted else "announced again", user)


def alert_answer(*, alert: Alert, answer: str, user: User, reason: str = "") -> Alert:
    """Change the state of an alert and of the open ones that follow it; all answers but `reopen` need a reason.

    Raise ValueError.
    """
    if answer not in ANSWERS:
        raise ValueError(f"unknown answer {answer[:40]!r}; use {', '.join(ANSWERS)}")
    reason = reason.strip()[:REASON_LENGTH]
    if answer != "reopen" and not reason:
        raise ValueError("reason is empty; enter one, so that others understand the state")
    fields: dict[str, Any] = {
        "state": ANSWERS[answer], "reason": reason, "changed_by": user, "changed_at": timezone.now(), "fixed_by": None,
    }  # fmt: skip
    Alert.objects.filter(pk=alert.pk).update(**fields)
    if answer != "reopen":
        Alert.objects.open().filter(leader=alert).update(**fields)
    alert.refresh_from_db()
    if answer == "reopen":
        item_reopen_by_key(key=ITEM.format(alert.pk))
    else:
        items_close(keys=[ITEM.format(alert.pk)], reason=f"{alert.state}: {reason}", user=user)
    logger.info("alert %s is %s by %s: %s", alert.pk, alert.state, user, reason)
    return alert


class Imported(NamedTuple):
    """Outcome of an import of a history."""

    rows: int
    alerts: int
    problems: list[str]


def experiment_import(*, watch: Watch, experiment: Experiment) -> Imported:
    """Store the finished runs of an experiment as one series in their order; raise ValueError if there are none."""
    if experiment.project_id != watch.project_id:
        raise ValueError(
            f"experiment {experiment.name} is of another project than the watch; move it, or choose another"
        )
    rows = experiment_store(watch=watch, experiment=experiment)
    if not rows:
        raise ValueError(f"experiment {experiment.name} has no finished run that the watch lacks; choose another")
    return Imported(rows, len(watch_detect(watch=watch)), [])


def history_import(*, watch: Watch, text: str) -> Imported:
    """Store the results of a history and search them for changes; raise ValueError if the file has none."""
    history = read_history(text)
    count = history_store(watch=watch, rows=history.rows)
    return Imported(count, len(watch_detect(watch=watch)), history.problems)
