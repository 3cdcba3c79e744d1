"""What the planner takes from the database: devices to plan with, measured runs to calibrate on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from parlab.charts.predicted import PredictedPoint
from parlab.lab.models import Device, Experiment, Run
from parlab.planner import Calibration, Cluster, Job, Observation, calibrate, cluster, predict_job
from parlab.planner.hardware import Gpu
from runners.protocol import RunState

from .plannable import Seen, seen_runs

MAX_RUNS = 300
"""The newest runs that are looked at for calibrations, of those that parlab measured and of those of files."""
FEWEST = 4
"""Runs of a cluster and family that are worth a calibration."""
_FEWEST_OTHERS = 2
"""Runs of the other half of a sweep that calibrate: few move the constants little."""
_WORDS = {Run.Origin.MEASURED: "measured", Run.Origin.IMPORTED: "imported"}


class CalibrationGroup(NamedTuple):
    """Runs of one cluster and model family, or of one imported experiment."""

    key: str
    title: str
    device: str
    """Empty where the files name no GPU: they are taken as run on the device that is planned for."""
    observations: tuple[Observation, ...]


class CalibrationSource(NamedTuple):
    """An experiment and what its runs are to calibrations."""

    experiment: Experiment
    origin: str
    used: int
    unused: list[str]
    """Why the others are not used: "3 runs: ..."."""


class CalibrationPool(NamedTuple):
    """The calibrations that the database has to offer, and where they come from."""

    groups: list[CalibrationGroup]
    sources: list[CalibrationSource]


def devices() -> list[Device]:
    """The catalogue, GPUs before processors."""
    return sorted(Device.objects.all(), key=lambda device: (device.name.startswith("CPU"), device.name))


def device_named(name: str) -> Gpu | None:
    """One device of the catalogue; None where there is none of that name."""
    found = Device.objects.filter(name__iexact=name.strip()).first()
    return found.gpu if found else None


def calibration_pool() -> CalibrationPool:
    """Look for clusters and families, and imported experiments, of which enough runs are known; most runs first."""
    seen: list[Seen] = []
    for origin in _WORDS:
        ended = Run.objects.filter(origin=origin, state__in=(RunState.FINISHED, RunState.OOM))
        seen += seen_runs(ended.select_related("experiment").order_by("-pk")[:MAX_RUNS])
    groups: dict[str, list[Seen]] = {}
    for one in seen:
        if one.observation is not None:
            groups.setdefault(_key(one, one.observation), []).append(one)
    enough = {key: members for key, members in groups.items() if _times(members) >= FEWEST}
    used = {one.run.pk for members in enough.values() for one in members}
    found = [_group(key, members) for key, members in enough.items()]
    return CalibrationPool(sorted(found, key=lambda group: -len(group.observations)), _sources(seen, used))


def _times(members: Sequence[Seen]) -> int:
    return sum(one.observation is not None and one.observation.iteration_s is not None for one in members)


def _key(one: Seen, seen: Observation) -> str:
    """Name what runs have in common that calibrate together: a document is one cluster and one code base."""
    if one.run.origin == Run.Origin.IMPORTED:
        return f"imported/{one.run.experiment_id}"
    return _place_key(seen.job, seen.cluster)


def _place_key(job: Job, where: Cluster) -> str:
    return f"{where.name}/{where.device.name}/{job.family}"


def _group(key: str, members: Sequence[Seen]) -> CalibrationGroup:
    observations = tuple(one.observation for one in members if one.observation is not None)
    job, where = observations[0].job, observations[0].cluster
    is_device_said = all(one.is_device_said for one in members)
    if members[0].run.origin == Run.Origin.IMPORTED:
        place = where.device.name if is_device_said else "a GPU that its files do not name"
        title = f"{members[0].run.experiment.name} on {place}"
    else:
        title = f"engine {job.family} on {where.device.name} (pool {where.name})"
    device = where.device.name if is_device_said else ""
    return CalibrationGroup(key, f"{title}, {len(members)} runs", device, observations)


def _sources(seen: Sequence[Seen], used: set[int]) -> list[CalibrationSource]:
    """Say of each experiment how many runs calibrate, and why the others do not."""
    by_experiment: dict[int, list[Seen]] = {}
    for one in seen:
        by_experiment.setdefault(one.run.experiment_id, []).append(one)
    found = []
    for members in by_experiment.values():
        reasons = Counter(
            one.reason if one.observation is None else f"fewer than {FEWEST} runs of that cluster and family"
            for one in members
            if one.run.pk not in used
        )
        unused = [f"{count} {'run' if count == 1 else 'runs'}: {reason}" for reason, count in reasons.most_common()]
        run = members[0].run
        teaching = sum(one.run.pk in used for one in members)
        found.append(CalibrationSource(run.experiment, _WORDS[Run.Origin(run.origin)], teaching, unused))
    return sorted(found, key=lambda source: -source.used)


def calibration_of(group: CalibrationGroup, gpu: Gpu) -> Calibration:
    """Fit the planner to a group of runs, on `gpu` where no file names theirs; the same runs are fitted once."""
    if group.device:
        return _calibrated(group.observations, group.title)
    moved = tuple(replace(one, cluster=_on(one.cluster, gpu)) for one in group.observations)
    return _calibrated(moved, f"{group.title}, taken as {gpu.name}")


def _on(where: Cluster, gpu: Gpu) -> Cluster:
    return cluster(gpu, where.gpus, where.gpus_per_node, name=where.name)


@lru_cache(maxsize=64)
def _calibrated(observations: tuple[Observation, ...], title: str) -> Calibration:
    return calibrate(observations, title)


class Predictions(NamedTuple):
    """Runs predicted, and why the others are not."""

    points: list[PredictedPoint]
    left_out: list[str]
    """"3 runs: ..."."""


def predicted_points(runs: Sequence[Run]) -> Predictions:
    """Predicted beside measured time of an experiment's runs.

    Each half of the runs is predicted after a calibration on the other half, so that no prediction has seen its own
    run; with fewer than two runs in the other half it is the uncalibrated prediction.
    """
    groups: dict[str, list[Seen]] = {}
    reasons: Counter[str] = Counter()
    for one in seen_runs(runs):
        if one.observation is None or not one.is_device_said:
            reasons[one.reason] += 1
        else:
            groups.setdefault(_key(one, one.observation), []).append(one)
    left_out = [f"{count} {'run' if count == 1 else 'runs'}: {reason}" for reason, count in reasons.most_common()]
    return Predictions([point for members in groups.values() for point in _half_by_half(members)], left_out)


def _half_by_half(members: Sequence[Seen]) -> Iterable[PredictedPoint]:
    known = [(one.run, one.observation) for one in members if one.observation is not None]
    for half in (0, 1):
        others = tuple(seen for _run, seen in known[1 - half :: 2])
        calibration = _calibrated(others, f"{len(others)} other runs") if len(others) >= _FEWEST_OTHERS else None
        for run, seen in known[half::2]:
            prediction = predict_job(seen.job, seen.cluster, calibration)
            yield PredictedPoint(
                number=run.number,
                values=run.point,
                measured_s=seen.iteration_s,
                predicted_s=prediction.iteration_s,
                plain_s=predict_job(seen.job, seen.cluster).iteration_s,
                measured_bytes=seen.memory_bytes,
                predicted_bytes=prediction.memory_bytes,
                is_oom=seen.is_oom,
                fits=prediction.fits,
                basis=prediction.basis,
            )
