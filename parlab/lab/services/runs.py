import logging
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from parlab.lab.models import Attempt, Config, Run, Snapshot
from runners.config import ConfigError, Point, Problem, RunConfig, digest
from runners.protocol import RunState

from .attempts import configuration_snapshot, lock_attempt, queue_next_attempt
from .configs import lock_experiment
from .emulation import with_times

logger = logging.getLogger(__name__)

_LABEL_LENGTH = 300
# A cancel meets a run that changes under it; each round sees a newer state, and three are more than it takes.
_CANCEL_ROUNDS = 5


class Launch(NamedTuple):
    """What a launch did: new runs, how many points had one already, and points that cannot run."""

    created: list[Run]
    existing: int
    invalid: list[Point]


@transaction.atomic
def config_launch(*, config: Config, user: User, only: Collection[str] | None = None) -> Launch:
    """Queue a run for every point of a sweep that can run and has none yet, or `only` for those of these digests.

    Raises ConfigError when no point can be launched.
    """
    lock_experiment(config.experiment)
    # Unused configs are edited in place: what is launched is what the lock protects, not what a page once read.
    config = Config.objects.select_related("experiment").get(pk=config.pk)
    points = [launchable(point) for point in config.points() if only is None or digest(point.values) in only]
    invalid = [point for point in points if point.config is None]
    if len(invalid) == len(points):
        raise ConfigError(list({str(problem): problem for point in invalid for problem in point.problems}.values()))
    taken = set(config.runs.values_list("point_digest", flat=True))
    runnable = [(point.values, point.config) for point in points if point.config is not None]
    new = [(values, run_config) for values, run_config in runnable if digest(values) not in taken]
    first = next_number(config)
    runs = Run.objects.bulk_create(
        [_new_run(config, values, run_config, first + index, user) for index, (values, run_config) in enumerate(new)]
    )
    Attempt.objects.bulk_create([Attempt(run=run, number=1) for run in runs])
    Snapshot.objects.bulk_create([configuration_snapshot(run, 1) for run in runs])
    return Launch(runs, len(runnable) - len(new), invalid)


def launchable(point: Point) -> Point:
    """Fill in times that a point takes from a run; of one that no daemon can start yet say so."""
    point = with_times(point)
    if point.config is None or point.config.cluster.nodes == 1 or point.config.network.apply == "emulate":
        return point
    nodes = point.config.cluster.nodes
    message = f"nodes {nodes} cannot be launched yet: a run lives on one node; set nodes to 1, or network.apply emulate"
    problem = Problem("cluster.nodes", nodes, message)
    return Point(point.values, None, [problem])


def next_number(config: Config) -> int:
    last: int | None = config.experiment.runs.aggregate(last=Max("number"))["last"]
    return (last or 0) + 1


def _new_run(config: Config, values: dict[str, Any], run_config: RunConfig, number: int, user: User) -> Run:
    return Run(
        experiment=config.experiment,
        config=config,
        number=number,
        label=run_label(config, values, run_config),
        point=values,
        point_digest=digest(values),
        resolved=run_config.resolved(),
        created_by=user,
    )


def run_label(config: Config, values: Mapping[str, Any], run_config: RunConfig) -> str:
    """Name a run by its point; one that does not compute says so wherever it is named."""
    label = point_label(values) or f"v{config.version}"
    return f"{label[: _LABEL_LENGTH - 12]}, emulated" if run_config.train.compute == "emulated" else label


def point_label(values: Mapping[str, Any]) -> str:
    """Name a point by its axis values: `schedule gpipe, micro_batch_size 2`."""
    label = ", ".join(f"{field.rpartition('.')[2]} {_shown(value)}" for field, value in values.items())
    return label if len(label) <= _LABEL_LENGTH else label[: _LABEL_LENGTH - 1] + "…"


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)


@transaction.atomic
def run_relaunch(*, run: Run, user: User) -> Attempt:
    """Queue the next attempt of a run that has ended; raises ValueError when it has not, or was published."""
    current = Run.objects.select_for_update(no_key=True).get(pk=run.pk)
    if current.origin != Run.Origin.MEASURED:
        raise ValueError(f"run #{current.number} holds published figures; launch a config of your own to measure it")
    if not current.is_final:
        raise ValueError(f"run #{current.number} is {current.state}; cancel it or wait until it ends, then relaunch")
    logger.info("run %s (%s) is relaunched by %s", current.pk, current, user)
    attempt = queue_next_attempt(current)
    # Who asks again stands at the end of the queue; a run lost with its node keeps its place.
    Run.objects.filter(pk=current.pk).update(queued_at=timezone.now())
    return attempt


@transaction.atomic
def run_cancel_request(*, run: Run) -> RunState:
    """Cancel a run that still waits, or ask for it; returns the state that the run then has.

    Raises ValueError when the run has ended.
    """
    for _ in range(_CANCEL_ROUNDS):
        current = Run.objects.get(pk=run.pk)
        if current.is_final:
            raise ValueError(f"run #{current.number} has ended already: {current.state}")
        attempt, current = lock_attempt(current.current_attempt())
        if current.attempt_number != attempt.number or current.state != attempt.state or current.is_final:
            continue
        if attempt.state == RunState.QUEUED:
            end = {"state": RunState.CANCELLED, "reason": "cancelled before it started", "ended_at": timezone.now()}
            Attempt.objects.filter(pk=attempt.pk, state=RunState.QUEUED).update(**end)
            Run.objects.filter(pk=current.pk, state=RunState.QUEUED).update(**end, cancel_requested_at=timezone.now())
            return RunState.CANCELLED
        Run.objects.filter(pk=current.pk, cancel_requested_at=None).update(cancel_requested_at=timezone.now())
        return current.run_state
    raise ValueError(f"run #{run.number} changes faster than it can be cancelled; try again")
