import logging
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from parlab.lab.models import Attempt, Config, LaunchApproval, Run, Snapshot
from parlab.lab.services.access.projects import closed_pools
from parlab.lab.services.access.rights import guard_change, project_of
from runners.config import ConfigError, Point, Problem, RunConfig, repeated
from runners.config.engines import engine_names
from runners.wire.protocol import RunState

from . import events
from .approvals import approval_ask
from .attempts import configuration_snapshot, lock_attempt, queue_next_attempt
from .chains import unshared_checkpoints
from .configs import Superseded, lock_experiment
from .emulation import with_times

logger = logging.getLogger(__name__)

_LABEL_LENGTH = 300
# The state of a run can change while it is being cancelled; each round reads it again.
_CANCEL_ROUNDS = 5


class Launch(NamedTuple):
    """Result of a launch: the new runs, the number of runs that existed already, and invalid points."""

    created: list[Run]
    existing: int
    invalid: list[Point]
    restored: int = 0
    """Archived runs of the points, which are shown again."""
    approval: LaunchApproval | None = None
    """What a maintainer has to approve before the new runs start."""


@transaction.atomic
def config_launch(*, config: Config, user: User, only: Collection[str] | None = None) -> Launch:
    """Queue a run for every valid point and repeat without one, optionally `only` for points with these digests.

    Raises Superseded if the configuration is no longer the one that the caller has read, and ConfigError if no point
    can be launched.
    """
    config = _unchanged(config)
    points = _chosen_points(config, only)
    invalid = [point for point in points if point.config is None]
    if len(invalid) == len(points):
        raise ConfigError(list({str(problem): problem for point in invalid for problem in point.problems}.values()))
    existing = set(Run.everything.filter(config=config).values_list("point_digest", flat=True))
    # A study names single points with `only`, and asks for one run of each.
    runnable = [point for point in repeated(points) if point.config and (only is None or point.digest in only)]
    new = [point for point in runnable if point.digest not in existing]
    # A point has one run, so launching a point whose run is archived takes it out of the archive.
    archived = Run.everything.filter(
        config=config, point_digest__in=[point.digest for point in runnable], hidden_at__isnull=False
    )
    restored = archived.update(hidden_at=None)
    first = next_number(config)
    runs = Run.everything.bulk_create(
        [_new_run(config, point, point.config, first + n, user) for n, point in enumerate(new) if point.config]
    )
    Attempt.objects.bulk_create([Attempt(run=run, number=1) for run in runs])
    Snapshot.objects.bulk_create([configuration_snapshot(run, 1) for run in runs])
    return Launch(runs, len(runnable) - len(new), invalid, restored, approval_ask(runs=runs, user=user))


def _chosen_points(config: Config, only: Collection[str] | None) -> list[Point]:
    closed = closed_pools(project_of(config))
    chosen = (point for point in config.points() if only is None or point.digest in only)
    return [_with_common_checkpoints(_in_open_pool(launchable(point), closed)) for point in chosen]


def _unchanged(config: Config) -> Config:
    """Lock the experiment and read the row again: unused configurations are edited in place."""
    lock_experiment(config.experiment)
    stored = Config.objects.select_related("experiment", "created_by").get(pk=config.pk)
    if stored.digest != config.digest:
        raise Superseded(stored)
    return stored


def launchable(point: Point) -> Point:
    """Fill in the emulation times of a point; one that cannot start on its nodes is returned as invalid."""
    point = with_times(point)
    problem = None if point.config is None else _span_problem(point.config)
    return point if problem is None else Point(point.values, None, [problem])


def _in_open_pool(point: Point, closed: set[str]) -> Point:
    pool = point.config.cluster.pool if point.config else ""
    if pool not in closed:
        return point
    problem = Problem("cluster.pool", pool, f"pool {pool!r} is reserved for another project; choose another pool")
    return Point(point.values, None, [problem])


def _with_common_checkpoints(point: Point) -> Point:
    problem = unshared_checkpoints(point.config) if point.config else None
    return Point(point.values, None, [problem]) if problem else point


def _span_problem(config: RunConfig) -> Problem | None:
    """Return why the engine of a run cannot start on several machines."""
    nodes = config.cluster.nodes
    if nodes == 1 or config.network.apply == "emulate":
        return None
    if not config.engine.may_span_nodes:
        engines = ", ".join(engine_names(lambda row: row.may_span_nodes))
        return Problem(
            "cluster.nodes",
            nodes,
            f"nodes {nodes} is not possible with engine {config.engine.name}, which runs on one node;"
            f" set nodes to 1, or parallel.engine to one of: {engines}",
        )
    return None


def next_number(config: Config) -> int:
    runs = Run.everything.filter(experiment=config.experiment_id)
    last: int | None = runs.aggregate(last=Max("number"))["last"]
    return (last or 0) + 1


def _new_run(config: Config, point: Point, run_config: RunConfig, number: int, user: User) -> Run:
    label = run_label(config, point.values, run_config)
    return Run(
        experiment=config.experiment,
        config=config,
        number=number,
        label=label if point.repeat == 1 else f"{label[: _LABEL_LENGTH - 12]}, repeat {point.repeat}",
        point=point.values,
        point_digest=point.digest,
        repeat=point.repeat,
        resolved=run_config.resolved(),
        created_by=user,
    )


def run_label(config: Config, values: Mapping[str, Any], run_config: RunConfig) -> str:
    """Return the label of a run: its point, and whether its compute is emulated."""
    label = point_label(values) or f"v{config.version}"
    return f"{label[: _LABEL_LENGTH - 12]}, emulated" if run_config.train.compute == "emulated" else label


def point_label(values: Mapping[str, Any]) -> str:
    """Return the axis values of a point as text: `schedule gpipe, micro_batch_size 2`."""
    label = ", ".join(f"{field.rpartition('.')[2]} {_axis_text(value)}" for field, value in values.items())
    return label if len(label) <= _LABEL_LENGTH else label[: _LABEL_LENGTH - 1] + "…"


def _axis_text(value: Any) -> str:
    return "unset" if value is None else str(value)


@transaction.atomic
def run_relaunch(*, run: Run, user: User) -> Attempt:
    """Queue the next attempt of a run that has ended; raises ValueError for active, published and imported runs."""
    guard_change(run)
    current = Run.everything.select_for_update(no_key=True).get(pk=run.pk)
    if current.origin != Run.Origin.MEASURED:
        raise ValueError(f"run #{current.number} was not measured by parlab; launch a config of your own to measure it")
    if not current.is_final:
        raise ValueError(f"run #{current.number} is {current.state}; cancel it or wait until it ends, then relaunch it")
    logger.info("run %s (%s) is relaunched by %s", current.pk, current, user)
    attempt = queue_next_attempt(current)
    # A relaunched run goes to the end of the queue; a run that was lost with its node keeps its place.
    Run.everything.filter(pk=current.pk).update(
        queued_at=timezone.now(), queued_by=user, approval=None, chain_from=attempt.number, chain_ended_at=None
    )
    current.approval, current.attempt_number = None, attempt.number
    approval_ask(runs=[current], user=user)
    return attempt


@transaction.atomic
def run_cancel_request(*, run: Run) -> RunState:
    """Cancel a queued run at once, or request the cancellation of an active one; returns the new state.

    Raises ValueError if the run has ended.
    """
    guard_change(run)
    for _ in range(_CANCEL_ROUNDS):
        current = Run.everything.get(pk=run.pk)
        if current.is_final:
            raise ValueError(f"run #{current.number} has already ended: {current.state}")
        attempt, current = lock_attempt(current.current_attempt())
        if current.attempt_number != attempt.number or current.state != attempt.state or current.is_final:
            continue
        if attempt.state == RunState.QUEUED:
            end = {"state": RunState.CANCELLED, "reason": "cancelled before it started", "ended_at": timezone.now()}
            Attempt.objects.filter(pk=attempt.pk, state=RunState.QUEUED).update(**end)
            Run.everything.filter(pk=current.pk, state=RunState.QUEUED).update(
                **end, cancel_requested_at=timezone.now()
            )
            events.run_ended(
                run=current, attempt_number=attempt.number, state=RunState.CANCELLED, reason=str(end["reason"])
            )
            return RunState.CANCELLED
        Run.everything.filter(pk=current.pk, cancel_requested_at=None).update(cancel_requested_at=timezone.now())
        return current.run_state
    raise ValueError(f"run #{run.number} could not be cancelled because its state kept changing; try again")
