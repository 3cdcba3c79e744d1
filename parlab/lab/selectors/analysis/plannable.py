"""Runs as observations for the planner: job, cluster and measurements, or the reason why a run is not used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from parlab.lab.models import Attempt, Run
from parlab.planner import Cluster, Job, Observation
from parlab.planner.job.cluster import device
from parlab.planner.job.configs import job_of
from parlab.planner.job.device_words import device_in_text
from parlab.planner.job.hardware import Gpu
from parlab.planner.job.imported_jobs import ShapedLinks, seconds_at, stated_job
from parlab.planner.job.nodes import cluster_of
from parlab.planner.publications import sc21
from runners.config import RunConfig, check
from runners.config.devices import AUTO
from runners.wire.protocol import RunState

from .pipelines import network_in_text

_SIZES = ("num_layers", "hidden_size")
"""Sizes of a model without which a reported run cannot be planned; the defaults are those of another model."""
NO_DEVICE = "the GPU is not stated"
_LINKS = ("network", "delay", "latency", "bandwidth")
"""Words in the name of an axis that varies links."""


class Candidate(NamedTuple):
    """A run that ended, as an observation or with the reason why it is not one."""

    run: Run
    observation: Observation | None
    reason: str = ""
    is_device_stated: bool = True
    """False if an imported file does not name the GPU: the observation is then on the device being planned for."""


def calibration_candidates(runs: Iterable[Run]) -> list[Candidate]:
    """Return the runs that finished or ran out of memory as candidates, with two queries."""
    ended = {run.pk: run for run in runs if run.state in (RunState.FINISHED, RunState.OOM)}
    attempts: dict[int, Attempt] = {}
    for attempt in Attempt.objects.filter(run__in=ended).with_members():
        if attempt.number == ended[attempt.run_id].attempt_number:
            attempts[attempt.run_id] = attempt
    return [_candidate(run, attempts.get(pk)) for pk, run in ended.items()]


def _candidate(run: Run, attempt: Attempt | None) -> Candidate:
    try:
        if run.state != RunState.OOM and not run.step_time_s and not _tflops_per_gpu(run):
            raise ValueError("neither the step time nor the FLOP/s of a GPU are available")
        return _imported(run) if run.origin == Run.Origin.IMPORTED else _configured(run, attempt)
    except ValueError as error:
        return Candidate(run, None, str(error))


def _configured(run: Run, attempt: Attempt | None) -> Candidate:
    config, _problems = check(run.resolved)
    if config is None:
        raise ValueError("its configuration is no longer valid")
    unknown = [field for field in _SIZES if field not in (run.resolved.get("model") or {})]
    if run.origin == Run.Origin.REPORTED and unknown:
        raise ValueError(f"its training did not report {' and '.join(f'model.{field}' for field in unknown)}")
    if config.network.apply != "none":
        raise ValueError("its links were shaped or emulated")
    job_of(config)
    if run.origin == Run.Origin.PUBLISHED or attempt is None:
        raise ValueError(NO_DEVICE)
    if attempt.node is None and not attempt.environment:
        raise ValueError("the hardware is not recorded")
    where = cluster_of(machine_of(config, attempt), config, place_of(attempt))
    return Candidate(run, _observation(run, job_of(config, where.device.name), where))


def _imported(run: Run) -> Candidate:
    """Return the observation of an imported run; imported files rarely name the GPU.

    A row of NVIDIA's table has the sequence length, vocabulary and cluster of its paper. Links are read with the words
    that the network page reads.
    """
    if published := sc21.published_row(run.resolved):
        return Candidate(run, _observation(run, *sc21.published_job(published)))
    stated_gpu = _stated_device(run)
    gpu = stated_gpu or device("A100 80GB")
    if not run.gpus:
        raise ValueError("its number of GPUs is unknown")
    job, where = stated_job(run.resolved, gpu, int(run.gpus), _links(run))
    return Candidate(run, _observation(run, job, where), "" if stated_gpu else NO_DEVICE, stated_gpu is not None)


def _links(run: Run) -> ShapedLinks | None:
    """Return the links that the point of a run sets; None if it sets none. Raises ValueError for other words."""
    for axis, value in run.point.items():
        if any(word in axis.lower() for word in _LINKS):
            network = network_in_text(f"{value} {_unit(axis)}")
            if network is None:
                raise ValueError(f"{axis} {value!r} states neither a delay in ms nor a rate in bit/s")
            return ShapedLinks(network.delay_s, network.bits_per_s)
    return None


def _unit(axis: str) -> str:
    """Return the unit in the name of an axis: `delay (ms)` has ms."""
    return axis.rpartition("(")[2].rstrip(") ") if "(" in axis else ""


def _stated_device(run: Run) -> Gpu | None:
    """Return the device that the file names as the source of its peak FLOP/s, or in its text; None without one."""
    name = (run.summary.get("peak") or {}).get("device")
    if not isinstance(name, str):
        return device_in_text(run.experiment.notes)
    try:
        return device(name)
    except ValueError:
        return None


def _tflops_per_gpu(run: Run) -> float | None:
    """Return the TFLOP/s of a GPU that a run states, recomputation included."""
    rate = run.summary.get("tflops_per_gpu")
    return float(rate) if isinstance(rate, int | float) and 0 < rate < 1e6 else None


def _observation(run: Run, job: Job, where: Cluster) -> Observation:
    is_oom = run.state == RunState.OOM
    if is_oom:
        return Observation(job, where, is_oom=True)
    rate = _tflops_per_gpu(run)
    seconds = run.step_time_s or (seconds_at(job, rate) if rate else None)
    return Observation(job, where, seconds, run.memory_max_bytes)


def machine_of(config: RunConfig, attempt: Attempt) -> Mapping[str, Any]:
    """Return the hardware of an attempt as `cluster_of` reads it."""
    machine = dict((attempt.node.hardware if attempt.node else None) or {})
    machine |= {name: value for name, value in attempt.environment.items() if value}
    if config.device is AUTO and not machine.get("gpus_used", machine.get("gpus")):
        machine["gpus"] = []
    return machine


def place_of(attempt: Attempt) -> str:
    """Return the name of the cluster: nodes with the same device in the same pool form one cluster."""
    return attempt.node.pool if attempt.node else "default"
