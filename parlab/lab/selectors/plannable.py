"""Runs as observations for the planner: job, cluster and measurements, or the reason why a run is not used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from parlab.lab.models import Attempt, Run
from parlab.planner import Cluster, Job, Observation
from parlab.planner.cluster import device
from parlab.planner.configs import job_of
from parlab.planner.hardware import Gpu
from parlab.planner.nodes import cluster_of
from parlab.planner.stated import stated_job
from runners.config import RunConfig, check
from runners.config.devices import AUTO
from runners.protocol import RunState

NO_DEVICE = "the GPU is not stated"
_LINKS = ("network", "delay", "latency", "bandwidth")


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
        if run.state != RunState.OOM and not run.step_time_s:
            raise ValueError("the step time is not available")
        return _imported(run) if run.origin == Run.Origin.IMPORTED else _configured(run, attempt)
    except ValueError as error:
        return Candidate(run, None, str(error))


def _configured(run: Run, attempt: Attempt | None) -> Candidate:
    config, _problems = check(run.resolved)
    if config is None:
        raise ValueError("its configuration is no longer valid")
    if config.network.apply != "none":
        raise ValueError("its links were shaped or emulated")
    job = job_of(config)
    if run.origin == Run.Origin.PUBLISHED or attempt is None:
        raise ValueError(NO_DEVICE)
    if attempt.node is None and not attempt.environment:
        raise ValueError("the hardware is not recorded")
    return Candidate(run, _observation(run, job, cluster_of(_machine(config, attempt), config, _place(attempt))))


def _imported(run: Run) -> Candidate:
    """Return the observation of an imported run; imported files rarely name the GPU."""
    if any(term in axis.lower() for axis in run.point for term in _LINKS):
        raise ValueError("its links were shaped in a way that the planner does not support")
    stated_gpu = _stated_device(run)
    gpu = stated_gpu or device("A100 80GB")
    if not run.gpus:
        raise ValueError("its number of GPUs is unknown")
    job, where = stated_job(run.resolved, gpu, int(run.gpus))
    return Candidate(run, _observation(run, job, where), "" if stated_gpu else NO_DEVICE, stated_gpu is not None)


def _stated_device(run: Run) -> Gpu | None:
    """Return the device that the file names as the source of its peak FLOP/s; None without one."""
    name = (run.summary.get("peak") or {}).get("device")
    if not isinstance(name, str):
        return None
    try:
        return device(name)
    except ValueError:
        return None


def _observation(run: Run, job: Job, where: Cluster) -> Observation:
    is_oom = run.state == RunState.OOM
    seconds, memory = (None, None) if is_oom else (run.step_time_s, run.memory_max_bytes)
    return Observation(job, where, seconds, memory, is_oom)


def _machine(config: RunConfig, attempt: Attempt) -> Mapping[str, Any]:
    machine = dict((attempt.node.hardware if attempt.node else None) or {})
    machine |= {name: value for name, value in attempt.environment.items() if value}
    if config.device is AUTO and not machine.get("gpus_used", machine.get("gpus")):
        machine["gpus"] = []
    return machine


def _place(attempt: Attempt) -> str:
    """Return the name of the cluster: nodes with the same device in the same pool form one cluster."""
    return attempt.node.pool if attempt.node else "default"
