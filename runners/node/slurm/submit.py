"""From a configuration to a job of Slurm: its batch script, and the reasons why it cannot be one. Pure."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from runners.config import Problem, RunConfig
from runners.node.jobs.state import BROKEN, NOT_NEEDED, WARNED
from runners.node.slurm.queue import NO_STATE_DIRECTORY, Partition

PACKAGE_ROOT = Path(__file__).resolve().parents[3]
"""Directory of the package runners, which all nodes see under the same path."""
MARGIN_S = 120
"""Time that a job gets beyond launcher.timeout_s, so that parlab's own limit comes first, with its better reason."""
AFTER_GRACE_S = 60
"""Time beyond launcher.grace_s in which the supervisors end what is left and ship the last output."""
_MEMBER = 'trap : TERM; "$@"; code=$?; [ $code -eq 0 ] || touch "$0" 2> /dev/null; exit $code'
"""Run a supervisor and create the file $0 if it fails or is killed. Only the supervisor reacts to SIGTERM of Slurm."""
_CONTAINED_MEMBER = _MEMBER.replace("; exit", '; [ $code -eq 0 ] || "$@" --clean; exit')
"""The same with a container, which a killed supervisor has left on the node."""


class Order(NamedTuple):
    """One attempt as a job."""

    name: str
    """Name of the job, by which a restarted daemon finds it again."""
    directory: Path
    """Directory of the job, on a file system that all nodes share."""
    run: Path
    """Directory of the run of node_rank 0, likewise."""
    partition: Partition
    after: int | None = None
    """Job that must have ended before: the next attempt of a chain waits in the queue."""


AHEAD_S = 120
"""Time that a job of the next attempt waits for the server to send it."""
AHEAD_VARIABLE = "PARLAB_AHEAD_S"
UNUSED_JOB = "unused_job"
"""In a launch file: the job that waited for the attempt, and has got a node that the attempt must not use."""
_BATCH_SIGNAL = "USR2"


def partition_of(config: RunConfig, allowed: Sequence[str]) -> str:
    """Return the partition of a run: the one it names, or the first one of the pool."""
    return config.slurm.partition or allowed[0]


def time_limit_min(config: RunConfig, most_s: float | None) -> int:
    """Return the time limit of the job in minutes; a derived one stays within the limit of the partition."""
    if config.slurm.time_limit_s:
        return math.ceil(config.slurm.time_limit_s / 60)
    launcher = config.launcher
    derived = launcher.timeout_s + max(MARGIN_S, launcher.grace_s + AFTER_GRACE_S)
    return math.ceil((derived if most_s is None else min(derived, most_s)) / 60)


def problems(config: RunConfig, allowed: Sequence[str], partitions: Mapping[str, Partition]) -> Iterator[Problem]:
    """Yield why the pool cannot take a run: each with field, value and remedy."""
    name = partition_of(config, allowed)
    if name not in allowed:
        message = f"the daemon of pool {config.cluster.pool} may not use partition {name}; use {' or '.join(allowed)}"
        yield Problem("slurm.partition", name, message)
        return
    partition = partitions.get(name)
    if partition is None:
        existing = ", ".join(sorted(partitions)) or "none"
        yield Problem("slurm.partition", name, f"Slurm has no partition {name}; use one of {existing}")
        return
    if not partition.is_up:
        message = f"partition {name} is not up; use another, or ask the administrator of the cluster"
        yield Problem("slurm.partition", name, message)
    yield from _size_problems(config, partition)
    yield from _time_problems(config, partition)
    if config.network.apply == "interface":
        message = "the interfaces of Slurm's nodes cannot be shaped; use network.apply none or emulate"
        yield Problem("network.apply", config.network.apply, message)


def _size_problems(config: RunConfig, partition: Partition) -> Iterator[Problem]:
    most = min(partition.nodes, partition.max_nodes or partition.nodes)
    if config.cluster.nodes > most:
        message = (
            f"nodes {config.cluster.nodes} is more than partition {partition.name} gives a job; use at most {most}"
        )
        yield Problem("cluster.nodes", config.cluster.nodes, message)


def _time_problems(config: RunConfig, partition: Partition) -> Iterator[Problem]:
    most_s = partition.max_time_s
    field, value = "launcher.timeout_s", config.launcher.timeout_s
    if config.slurm.time_limit_s:
        field, value = "slurm.time_limit_s", config.slurm.time_limit_s
    if most_s is not None and value > most_s:
        limit = f"the limit of partition {partition.name}, {most_s / 60:.0f} min"
        yield Problem(field, value, f"{field.partition('.')[2]} {value} is above {limit}; use at most {most_s:.0f}")


def script(config: RunConfig, order: Order) -> str:
    """Return the batch script of a run: srun starts the same supervisor on each node as a daemon starts on its own."""
    options = dict(_options(config, order))
    lines = [f"#SBATCH --{name}{'=' + value if value else ''}" for name, value in options.items()]
    run_member = _CONTAINED_MEMBER if config.launcher.container else _MEMBER
    member = ["sh", "-c", run_member, str(order.directory / BROKEN)]
    member += [sys.executable, "-m", "runners.node.slurm.member", str(order.run)]
    step = ["srun", f"--nodes={config.cluster.nodes}", f"--ntasks={config.cluster.nodes}", "--ntasks-per-node=1"]
    step += [f"--cpus-per-task={options['cpus-per-task']}", "--cpu-bind=none", "--input=none", "--kill-on-bad-exit=1"]
    ahead = [f"[ ! -e {NOT_NEEDED} ] || exit 0", f"export {AHEAD_VARIABLE}={AHEAD_S}"] if order.after else []
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            f"cd {shlex.quote(str(order.directory))} 2>/dev/null || exit {NO_STATE_DIRECTORY}",
            "exec >> job.out 2>&1",
            *ahead,
            # The directory of the job is the working directory, and the package need not be installed.
            f'export PYTHONPATH={shlex.quote(str(PACKAGE_ROOT))}"${{PYTHONPATH:+:$PYTHONPATH}}"',
            *_step_lines(config, shlex.join([*step, *member])),
            "",
        ]
    )


def _step_lines(config: RunConfig, step: str) -> list[str]:
    """Return the lines that start the supervisors and, with a warning, note it for them in a file.

    Slurm would send the signal to all processes of a step, also to launchers, which it ends.
    """
    if config.launcher.warn_before_s is None:
        return [f"exec {step}"]
    return [
        f"trap 'touch {WARNED}' {_BATCH_SIGNAL}",
        "trap : TERM",
        f"{step} &",
        "while kill -0 $! 2> /dev/null; do wait $!; done",
        "wait $!",
        "exit $?",
    ]


def _options(config: RunConfig, order: Order) -> Iterator[tuple[str, str]]:
    slurm, cluster = config.slurm, config.cluster
    yield "job-name", order.name
    yield "partition", order.partition.name
    yield "nodes", str(cluster.nodes)
    yield "ntasks-per-node", "1"
    yield "cpus-per-task", str(max(1, config.gpus_per_node * config.launcher.threads_per_rank))
    yield "time", str(time_limit_min(config, order.partition.max_time_s))
    for name in ("account", "qos", "constraint", "exclude"):
        if value := getattr(slurm, name):
            yield name, value
    if resources := slurm.gres or (f"gpu:{config.gpus_per_node}" if config.device.needs_gpus else ""):
        yield "gres", resources
    if slurm.memory_mib:
        yield "mem", f"{slurm.memory_mib}M"
    if slurm.exclusive:
        yield "exclusive", ""
    if config.launcher.warn_before_s is not None:
        yield "signal", f"B:{_BATCH_SIGNAL}@{config.launcher.warn_before_s}"
    if order.after is not None:
        yield "dependency", f"afterany:{order.after}"
    # The next attempt is a run of its own; a job that starts again would write into the output of the first one.
    yield "no-requeue", ""
    yield "chdir", "/"
    # The script opens its output itself: where the directory is not shared, Slurm would not say so.
    yield "output", "/dev/null"


def job_name(state_id: str, run: int, attempt: int) -> str:
    """Return the name of the job of an attempt, unique per state directory."""
    return f"{job_name_prefix(state_id)}{run}-{attempt}"


def job_name_prefix(state_id: str) -> str:
    """Return the beginning of the names of all jobs of a state directory."""
    return f"parlab-{state_id}-"
