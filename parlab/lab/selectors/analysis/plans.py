"""Inputs of the planner from the database: the device catalogue, and measured runs for calibration."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import fmean
from typing import Any, NamedTuple

from parlab.charts.sweeps.predicted import PredictedPoint
from parlab.lab.models import Device, DevicePrice, Experiment, Node, Run
from parlab.lab.models.run import RunQuerySet
from parlab.planner import Calibration, Cluster, Job, Observation, calibrate, cluster, predict_job
from parlab.planner.job.cluster import unknown_device
from parlab.planner.job.hardware import Gpu
from parlab.planner.job.prices import Price, list_price
from parlab.planner.requests.request import PlanRequest
from runners.wire.protocol import RunState

from .plannable import Candidate, calibration_candidates
from .repeats import repeat_key

MAX_RUNS = 300
"""Maximum number of runs considered for calibrations, newest first; for measured and imported runs each."""
FEWEST = 4
"""Minimum number of runs of a cluster and model family for a calibration."""
_FEWEST_OTHERS = 2
"""Minimum number of runs in the other half of a sweep for its calibration."""
_ORIGINS = {Run.Origin.MEASURED: "measured", Run.Origin.IMPORTED: "imported"}


class CalibrationGroup(NamedTuple):
    """Runs of one cluster and model family, or of one imported experiment."""

    key: str
    title: str
    device: str
    """Empty if the files do not name the GPU: the runs are then assumed to use the device being planned for."""
    observations: tuple[Observation, ...]


class CalibrationSource(NamedTuple):
    """An experiment, with the number of its runs used for calibrations."""

    experiment: Experiment
    origin: str
    used: int
    unused: list[str]
    """Reasons why other runs are not used: "3 runs: ..."."""


class CalibrationPool(NamedTuple):
    """The available calibrations, and the experiments that they come from."""

    groups: list[CalibrationGroup]
    sources: list[CalibrationSource]


def devices() -> list[Device]:
    """Return the device catalogue, GPUs before CPUs."""
    return sorted(Device.objects.all(), key=lambda device: (device.name.startswith("CPU"), device.name))


def device_named(name: str) -> Gpu | None:
    """Return a device of the catalogue by name; None if there is none."""
    device = Device.objects.filter(name__iexact=name.strip()).first()
    return device.gpu if device else None


def devices_like(text: str, names: Iterable[str]) -> list[str]:
    """Return the names that contain a text, without spaces and case; those of servers (SXM) first."""
    wanted = plain_name(text)
    return sorted((name for name in names if wanted and wanted in plain_name(name)), key=lambda name: "SXM" not in name)


def plain_name(name: str) -> str:
    """Return a name of a model or device without spaces, signs and case, as it is searched for."""
    return re.sub(r"[\s._-]", "", name.lower())


def device_of(question: PlanRequest) -> Gpu:
    """Return the device of a question. Raises ValueError if the catalogue has none of that name."""
    gpu = device_named(question.gpu)
    if gpu is None:
        raise ValueError(unknown_device(question.gpu, [device.name for device in devices()]))
    return gpu


def plan_context() -> dict[str, list[str]]:
    """Return what the validation of a question needs: the names of the devices."""
    return {"devices": [device.name for device in devices()]}


def offers_of(name: str) -> list[Price]:
    """Return the prices of an hour of a device, on demand first: those of the catalogue, otherwise its list price."""
    rows = DevicePrice.objects.filter(device__name__iexact=name.strip()).select_related("device")
    stated = [
        Price(
            row.per_hour,
            row.source or f"the device catalogue, {row.seen_on:%Y-%m-%d}",
            f"{row.get_offer_display()} price of {row.seen_on:%Y-%m-%d}",
            row.get_offer_display(),
            row.currency,
            f"{row.seen_on:%Y-%m-%d}",
            row.lost_percent / 100,
        )
        for row in rows
    ]
    listed = list_price(name.strip())
    return stated or ([listed] if listed else [])


def price_of(name: str) -> Price | None:
    """Return the first price of an hour of a device; None if it has none."""
    return next(iter(offers_of(name)), None)


def priced(question: PlanRequest) -> tuple[PlanRequest, Price | None]:
    """Return a question with a price: its own, or that of its device, which is returned as well."""
    price = price_of(question.gpu) if question.price is None else None
    return (question.model_copy(update={"price": price.per_hour}), price) if price else (question, None)


def calibration_pool() -> CalibrationPool:
    """Group runs by cluster and model family, or by imported experiment; largest groups first, small ones left out.

    The groups are read again when a run or an experiment of them has changed, or a node has moved to another pool.
    """
    versions = tuple(row for origin in _ORIGINS for row in _versions(origin))
    return _pool(versions, tuple(Node.objects.order_by("pk").values_list("pk", "pool")))


_CHANGING = (
    "pk", "state", "attempt_number", "step_time_s", "memory_max_bytes", "mfu", "gpus", "global_batch_size",
    "micro_batch_size", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "ended_at",
    "numbers_at", "experiment__updated_at",
)  # fmt: skip
"""Columns in which a run differs after it was measured, imported or edited again."""


def _versions(origin: Run.Origin) -> list[tuple[Any, ...]]:
    # Select ids first: they come from an index, without reading the rows of older runs.
    newest = _ended(origin).values("pk")[:MAX_RUNS]
    return list(Run.objects.filter(pk__in=newest).order_by("-pk").values_list(*_CHANGING))


def _ended(origin: Run.Origin) -> RunQuerySet:
    return Run.objects.filter(origin=origin, state__in=(RunState.FINISHED, RunState.OOM)).order_by("-pk")


@lru_cache(maxsize=2)
def _pool(versions: tuple[tuple[Any, ...], ...], _places: tuple[tuple[int, str], ...]) -> CalibrationPool:
    """Return the groups of runs; the primary key is the first column of their versions."""
    place = {row[0]: index for index, row in enumerate(versions)}
    runs = Run.objects.filter(pk__in=place).select_related("experiment").defer("launch")
    candidates = calibration_candidates(sorted(runs, key=lambda run: place[run.pk]))
    by_key: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        if candidate.observation is not None:
            by_key.setdefault(group_key(candidate, candidate.observation), []).append(candidate)
    sufficient = {key: members for key, members in by_key.items() if _timed_count(members) >= FEWEST}
    used = {candidate.run.pk for members in sufficient.values() for candidate in members}
    groups = [_group(key, members) for key, members in sufficient.items()]
    return CalibrationPool(sorted(groups, key=lambda group: -len(group.observations)), _sources(candidates, used))


def _timed_count(members: Sequence[Candidate]) -> int:
    observations = [candidate.observation for candidate in members]
    return sum(observation is not None and observation.iteration_s is not None for observation in observations)


def group_key(candidate: Candidate, observation: Observation) -> str:
    """Return the key of runs that are calibrated together: all runs of a document share a cluster and a code base."""
    if candidate.run.origin == Run.Origin.IMPORTED:
        return f"imported/{candidate.run.experiment_id}"
    return _cluster_key(observation.job, observation.cluster)


def _cluster_key(job: Job, where: Cluster) -> str:
    return f"{where.name}/{where.device.name}/{job.family}"


def _group(key: str, members: Sequence[Candidate]) -> CalibrationGroup:
    observations = tuple(candidate.observation for candidate in members if candidate.observation is not None)
    job, where = observations[0].job, observations[0].cluster
    is_device_stated = all(candidate.is_device_stated for candidate in members)
    if members[0].run.origin == Run.Origin.IMPORTED:
        place = where.device.name if is_device_stated else "a GPU not named in its files"
        title = f"{members[0].run.experiment.name} on {place}"
    else:
        title = f"engine {job.family} on {where.device.name} (pool {where.name})"
    device = where.device.name if is_device_stated else ""
    return CalibrationGroup(key, f"{title}, {len(members)} runs", device, observations)


def _sources(candidates: Sequence[Candidate], used: set[int]) -> list[CalibrationSource]:
    """Count the runs of each experiment that are used for calibrations, with reasons for the others."""
    by_experiment: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        by_experiment.setdefault(candidate.run.experiment_id, []).append(candidate)
    sources = []
    for members in by_experiment.values():
        reasons = Counter(
            candidate.reason
            if candidate.observation is None
            else f"fewer than {FEWEST} runs with this cluster and model family"
            for candidate in members
            if candidate.run.pk not in used
        )
        run = members[0].run
        used_count = sum(candidate.run.pk in used for candidate in members)
        origin = _ORIGINS[Run.Origin(run.origin)]
        sources.append(CalibrationSource(run.experiment, origin, used_count, _counted(reasons)))
    return sorted(sources, key=lambda source: -source.used)


def _counted(reasons: Counter[str]) -> list[str]:
    return [f"{count} {'run' if count == 1 else 'runs'}: {reason}" for reason, count in reasons.most_common()]


def calibration_of(group: CalibrationGroup, gpu: Gpu) -> Calibration:
    """Fit the planner to a group of runs, on `gpu` if their files do not name one; results are cached."""
    if group.device:
        return calibrated(group.observations, group.title)
    moved = tuple(
        replace(observation, cluster=_on_device(observation.cluster, gpu)) for observation in group.observations
    )
    return calibrated(moved, f"{group.title}, assuming {gpu.name}")


def _on_device(where: Cluster, gpu: Gpu) -> Cluster:
    return cluster(gpu, where.gpus, where.gpus_per_node, name=where.name)


@lru_cache(maxsize=64)
def calibrated(observations: tuple[Observation, ...], title: str) -> Calibration:
    return calibrate(observations, title)


class Predictions(NamedTuple):
    """Predictions of runs, and the reasons why other runs have none."""

    points: list[PredictedPoint]
    left_out: list[str]
    """"3 runs: ..."."""


def predicted_points(runs: Sequence[Run]) -> Predictions:
    """Return the predicted and measured step times of the points of an experiment, repeats as one point.

    Each half of the points is predicted after a calibration on the other half, so that no run contributes to its own
    prediction. With fewer than two runs in the other half, predictions are uncalibrated.
    """
    groups: dict[str, list[Candidate]] = {}
    reasons: Counter[str] = Counter()
    for candidate in calibration_candidates(runs):
        if candidate.observation is None or not candidate.is_device_stated:
            reasons[candidate.reason] += 1
        else:
            groups.setdefault(group_key(candidate, candidate.observation), []).append(candidate)
    points = [point for members in groups.values() for point in _half_by_half(members)]
    return Predictions(points, _counted(reasons))


def _half_by_half(members: Sequence[Candidate]) -> Iterable[PredictedPoint]:
    by_point: dict[Hashable, list[tuple[Run, Observation]]] = {}
    for candidate in members:
        if candidate.observation is not None:
            by_point.setdefault(repeat_key(candidate.run), []).append((candidate.run, candidate.observation))
    observed = list(by_point.values())
    for half in (0, 1):
        others = tuple(observation for repeats in observed[1 - half :: 2] for _run, observation in repeats)
        calibration = calibrated(others, f"{len(others)} other runs") if len(others) >= _FEWEST_OTHERS else None
        for repeats in observed[half::2]:
            run, observation = next((pair for pair in repeats if pair[1].iteration_s), repeats[0])
            times = tuple(seconds for _run, other in repeats if (seconds := other.iteration_s))
            prediction = predict_job(observation.job, observation.cluster, calibration)
            yield PredictedPoint(
                number=run.number,
                values=run.point,
                measured_s=fmean(times) if times else None,
                predicted_s=prediction.iteration_s,
                plain_s=predict_job(observation.job, observation.cluster).iteration_s,
                measured_bytes=observation.memory_bytes,
                predicted_bytes=prediction.memory_bytes,
                is_oom=observation.is_oom,
                fits=prediction.fits,
                basis=prediction.basis,
                kinds=_kinds(run, observation),
                repeats_s=times if len(times) > 1 else (),
            )


def _kinds(run: Run, observation: Observation) -> tuple[str, str]:
    """Return how the time and memory of a file came about; a time that follows from its FLOP/s is derived."""
    is_timed = run.has_printed_numbers and observation.iteration_s is not None
    return run.kinds.get("step_time_s", "derived" if is_timed else ""), run.kinds.get("memory_max_bytes", "")
