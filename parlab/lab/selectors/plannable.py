"""Runs as the planner sees them: what was trained where, what it took, and why a run teaches nothing."""

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

NO_DEVICE = "does not say on which GPU it ran"
_LINKS = ("network", "delay", "latency", "bandwidth")


class Seen(NamedTuple):
    """A run that ended: as an observation, or with the reason why it is none."""

    run: Run
    observation: Observation | None
    reason: str = ""
    is_device_said: bool = True
    """False where a file names no GPU: the observation is then on whatever device is planned for."""


def seen_runs(runs: Iterable[Run]) -> list[Seen]:
    """Look at all runs that finished or ran out of memory; two queries."""
    wanted = {run.pk: run for run in runs if run.state in (RunState.FINISHED, RunState.OOM)}
    places: dict[int, Attempt] = {}
    for attempt in Attempt.objects.filter(run__in=wanted).select_related("node"):
        if attempt.number == wanted[attempt.run_id].attempt_number:
            places[attempt.run_id] = attempt
    return [_seen(run, places.get(pk)) for pk, run in wanted.items()]


def _seen(run: Run, attempt: Attempt | None) -> Seen:
    try:
        if run.state != RunState.OOM and not run.step_time_s:
            raise ValueError("no time of an iteration is known")
        return _imported(run) if run.origin == Run.Origin.IMPORTED else _configured(run, attempt)
    except ValueError as error:
        return Seen(run, None, str(error))


def _configured(run: Run, attempt: Attempt | None) -> Seen:
    config, _problems = check(run.resolved)
    if config is None:
        raise ValueError("its configuration is not valid any more")
    if config.network.apply != "none":
        raise ValueError("it ran on links that were shaped or emulated")
    job = job_of(config)
    if run.origin == Run.Origin.PUBLISHED or attempt is None:
        raise ValueError(NO_DEVICE)
    if attempt.node is None and not attempt.environment:
        raise ValueError("nothing is known of the machine it ran on")
    return Seen(run, _observation(run, job, cluster_of(_machine(config, attempt), config, _place(attempt))))


def _imported(run: Run) -> Seen:
    """A run of a file: its sections say what they say, and seldom the GPU."""
    if any(word in axis.lower() for axis in run.point for word in _LINKS):
        raise ValueError("its links were shaped, in words that the planner does not read")
    named = _device_named(run)
    gpu = named or device("A100 80GB")
    job, where = stated_job(run.resolved, gpu, run.gpus)
    return Seen(run, _observation(run, job, where), "" if named else NO_DEVICE, named is not None)


def _device_named(run: Run) -> Gpu | None:
    """The device whose peak the run was held against, where its file names one."""
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
    """Name the machines: those of the same device and pool are one cluster."""
    return attempt.node.pool if attempt.node else "default"
