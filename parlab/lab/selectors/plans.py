"""What the planner takes from the database: devices to plan with, measured runs to calibrate on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from parlab.charts.predicted import PredictedPoint
from parlab.lab.models import Attempt, Device, Run
from parlab.planner import Calibration, Cluster, Job, Observation, calibrate, predict_job
from parlab.planner.configs import job_of
from parlab.planner.hardware import Gpu
from parlab.planner.nodes import cluster_of
from runners.config import RunConfig, check
from runners.protocol import RunState

MAX_RUNS = 300
"""The newest runs that are looked at for calibrations."""
FEWEST = 4
"""Runs of a cluster and family that are worth a calibration."""


class Measured(NamedTuple):
    """A run as the planner sees it."""

    run: Run
    observation: Observation


class CalibrationGroup(NamedTuple):
    """Runs of one cluster and model family."""

    key: str
    title: str
    device: str
    observations: tuple[Observation, ...]


def devices() -> list[Device]:
    """The catalogue, GPUs before processors."""
    return sorted(Device.objects.all(), key=lambda device: (device.name.startswith("CPU"), device.name))


def device_named(name: str) -> Gpu | None:
    """One device of the catalogue; None where there is none of that name."""
    found = Device.objects.filter(name__iexact=name.strip()).first()
    return found.gpu if found else None


def measured_runs(runs: Iterable[Run]) -> list[Measured]:
    """Those of the runs that parlab measured and the planner can plan, with where they ran."""
    wanted = {
        run.pk: run
        for run in runs
        if run.origin == Run.Origin.MEASURED and run.state in (RunState.FINISHED, RunState.OOM)
    }
    attempts = Attempt.objects.filter(run__in=wanted).select_related("node")
    places: dict[int, Attempt] = {}
    for attempt in attempts:
        if attempt.number == wanted[attempt.run_id].attempt_number:
            places[attempt.run_id] = attempt
    found = (_measured(run, places.get(pk)) for pk, run in wanted.items())
    return [one for one in found if one is not None]


def _measured(run: Run, attempt: Attempt | None) -> Measured | None:
    config, _problems = check(run.resolved)
    if config is None or attempt is None or config.network.apply != "none":
        return None
    try:
        job, cluster = job_of(config), cluster_of(_machine(config, attempt), config, _place(attempt))
    except ValueError:
        return None
    is_oom = run.state == RunState.OOM
    seconds = None if is_oom else run.step_time_s
    memory = None if is_oom else run.memory_max_bytes
    return Measured(run, Observation(job, cluster, seconds, memory, is_oom))


def _machine(config: RunConfig, attempt: Attempt) -> Mapping[str, Any]:
    machine = dict((attempt.node.hardware if attempt.node else None) or {})
    machine |= {name: value for name, value in attempt.environment.items() if value}
    if config.cluster.device == "auto" and not machine.get("gpus_used", machine.get("gpus")):
        machine["gpus"] = []
    return machine


def _place(attempt: Attempt) -> str:
    """Name the machines: those of the same device and pool are one cluster."""
    return attempt.node.pool if attempt.node else "default"


def _family(job: Job) -> str:
    return f"engine {job.family}"


def _key(job: Job, cluster: Cluster) -> str:
    return f"{cluster.name}/{cluster.device.name}/{job.family}"


def calibration_groups() -> list[CalibrationGroup]:
    """Clusters and model families of which enough runs are known, the one with most runs first."""
    newest = Run.objects.filter(
        origin=Run.Origin.MEASURED, state__in=(RunState.FINISHED, RunState.OOM), step_time_s__isnull=False
    ).order_by("-pk")[:MAX_RUNS]
    groups: dict[str, list[Observation]] = {}
    titles: dict[str, str] = {}
    for one in measured_runs(newest):
        job, cluster = one.observation.job, one.observation.cluster
        key = _key(job, cluster)
        groups.setdefault(key, []).append(one.observation)
        titles[key] = f"{_family(job)} on {cluster.device.name} (pool {cluster.name})"
    found = [
        CalibrationGroup(key, f"{titles[key]}, {len(members)} runs", members[0].cluster.device.name, tuple(members))
        for key, members in groups.items()
        if len(members) >= FEWEST
    ]
    return sorted(found, key=lambda group: -len(group.observations))


def calibration_of(group: CalibrationGroup) -> Calibration:
    """Fit the planner to a group of runs; the same runs are fitted once."""
    return _calibrated(group.observations, group.title)


@lru_cache(maxsize=64)
def _calibrated(observations: tuple[Observation, ...], title: str) -> Calibration:
    return calibrate(observations, title)


def predicted_points(runs: Sequence[Run]) -> list[PredictedPoint]:
    """Predicted beside measured time of an experiment's runs.

    Each half of the runs is predicted after a calibration on the other half, so that no prediction has seen its own
    run; with fewer than FEWEST runs in the other half it is the uncalibrated prediction.
    """
    groups: dict[str, list[Measured]] = {}
    for one in measured_runs(runs):
        groups.setdefault(_key(one.observation.job, one.observation.cluster), []).append(one)
    return [point for members in groups.values() for point in _half_by_half(members)]


def _half_by_half(members: Sequence[Measured]) -> Iterable[PredictedPoint]:
    for half in (0, 1):
        others = tuple(one.observation for one in members[1 - half :: 2])
        known = _calibrated(others, f"{len(others)} other runs") if len(others) >= FEWEST else None
        for one in members[half::2]:
            seen = one.observation
            prediction = predict_job(seen.job, seen.cluster, known)
            yield PredictedPoint(
                number=one.run.number,
                values=one.run.point,
                measured_s=seen.iteration_s,
                predicted_s=prediction.iteration_s,
                plain_s=predict_job(seen.job, seen.cluster).iteration_s,
                measured_bytes=seen.memory_bytes,
                predicted_bytes=prediction.memory_bytes,
                is_oom=seen.is_oom,
                fits=prediction.fits,
                basis=prediction.basis,
            )
