"""Runs that watches order: launched, repeated by relaunching, until each point has as many as ordered."""

from __future__ import annotations

import logging
from datetime import timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from parlab.charts.format import signed_percent
from parlab.fleet import services as fleet
from parlab.lab.models import Config, Run
from parlab.lab.services.configs import config_check, config_save
from parlab.lab.services.runs import config_launch
from runners.config import ConfigError, digest
from runners.wire.protocol import RunState

from .collecting import note_of
from .commits import with_commit
from .models import Order, Watch

logger = logging.getLogger(__name__)

BUDGET_PERIOD = timedelta(days=1)
"""Time in which a watch orders at most `max_extra` runs by itself."""


@transaction.atomic
def order_place(
    *, watch: Watch, count: int, reason: str, commit: str = "", suspect: str = "", user: User | None = None
) -> Order:
    """Order runs of the configuration of a watch, for a person or (None) by itself; the same open order is returned.

    Raise ValueError without a configuration.
    """
    Watch.objects.select_for_update(no_key=True).get(pk=watch.pk)
    if watch.config is None:
        raise ValueError(f"watch {watch.name} has no configuration; create one with a configuration to run it")
    if watch.repository and not commit:
        newest = watch.commits.order_by("-position").first()
        if newest is None:
            raise ValueError("no commit of the repository is known yet; wait until it has been read")
        commit = newest.sha
    identity = {"commit": commit, "suspect": suspect, "reason": reason[:300]}
    same = watch.orders.filter(state=Order.State.OPEN, **identity).first()
    return same or Order.objects.create(watch=watch, count=count, ordered_by=user, **identity)


def orders_advance(*, watch: Watch) -> None:
    """Advance the oldest open order of a watch as far as possible without waiting."""
    with transaction.atomic():
        Watch.objects.select_for_update(no_key=True).get(pk=watch.pk)
        order = watch.orders.filter(state=Order.State.OPEN).order_by("pk").first()
        if order is None:
            return
        try:
            problem = _advance(order)
        except (ConfigError, ValueError) as error:
            problem = str(error)
        if problem:
            _end(order, Order.State.FAILED, problem)


def _advance(order: Order) -> str:
    """Launch or repeat the runs of an order; return why it cannot go on."""
    config = config_at(order.watch, order.commit)
    user = order.ordered_by or order.watch.created_by
    runs = {run.pk: run for run in config.runs.filter(origin=Run.Origin.MEASURED)}
    if not order.targets:
        before = {pk: run.attempt_number - (0 if run.is_final else 1) for pk, run in runs.items()}
        config_launch(config=config, user=user)
        runs = {run.pk: run for run in config.runs.filter(origin=Run.Origin.MEASURED)}
        order.targets = {str(pk): before.get(pk, 0) + order.count for pk in runs}
        Order.objects.filter(pk=order.pk).update(targets=order.targets)
        transaction.on_commit(fleet.dispatch, robust=True)
    is_done = True
    for pk, target in order.targets.items():
        run = runs.get(int(pk))
        if run is None:
            continue  # deleted in the meantime
        if not run.is_final:
            is_done = False
        elif run.attempt_number < target:
            is_first = run.attempt_number == target - order.count
            if run.run_state != RunState.FINISHED and not is_first:
                return f"run #{run.number} ended as {run.state}: {run.reason or 'see its log'}"
            fleet.relaunch(run=run, user=user)
            is_done = False
        elif run.run_state != RunState.FINISHED:
            return f"run #{run.number} ended as {run.state}: {run.reason or 'see its log'}"
    if is_done:
        _end(order, Order.State.DONE, "")
    return ""


def config_at(watch: Watch, commit: str) -> Config:
    """Return the configuration of a watch, at a commit its version of it, which is created if necessary."""
    assert watch.config is not None
    if not commit:
        return watch.config
    note = f"{note_of(watch)}{commit}"[:300]
    data, sweep = config_check(data=with_commit(watch.config.data, commit), sweep=watch.config.sweep)
    # The digest, too: anybody who works in the project may have written the note.
    same = {"note": note, "digest": digest({"data": data, "sweep": sweep})}
    existing = watch.config.experiment.configs.filter(**same).first()
    return existing or config_save(
        experiment=watch.config.experiment,
        data=data,
        sweep=sweep,
        note=note,
        user=watch.created_by,
        as_next=True,
    )


def _end(order: Order, state: Order.State, problem: str) -> None:
    Order.objects.filter(pk=order.pk).update(state=state, problem=problem, ended_at=timezone.now())
    if not problem:
        Watch.objects.filter(pk=order.watch_id).exclude(problem="").update(problem="")
    else:
        Watch.objects.filter(pk=order.watch_id).update(problem=f"{order.reason}: {problem}")
        logger.warning("order %s of watch %s failed: %s", order.pk, order.watch_id, problem)


def suspicions_settle(*, watch: Watch) -> Order | None:
    """Order the runs that settle the most likely suspicion of a watch, within its budget."""
    if not watch.starts_runs or watch.orders.filter(state=Order.State.OPEN).exists():
        return None
    recent = watch.orders.exclude(suspect="").filter(created_at__gte=timezone.now() - BUDGET_PERIOD)
    left = watch.max_extra - int(recent.aggregate(runs=Sum("count"))["runs"] or 0)
    rows = [series for series in watch.series.exclude(suspicion={}) if series.suspicion["needed"] <= max(left, 0)]
    if not rows:
        return None
    series = max(rows, key=lambda row: abs(row.suspicion["size"]))
    newest = watch.results.filter(series=series.point).order_by("position", "at", "pk").last()
    suspicion = series.suspicion
    reason = f"{series.measure} {signed_percent(suspicion['size'])} is not certain yet"
    return order_place(
        watch=watch,
        count=suspicion["needed"],
        reason=reason,
        commit=newest.commit if newest is not None and watch.repository else "",
        suspect=str(suspicion["result"]),
    )
