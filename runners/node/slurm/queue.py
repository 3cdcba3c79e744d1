"""From what Slurm's commands print to jobs, partitions and endings of runs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from runners.node.jobs.system import Words
from runners.wire.protocol import RunState

SQUEUE_FORMAT = "%i|%T|%P|%Q|%N|%S|%r|%j"
"""Job id, state, partition, priority, nodes, expected or real start, reason, name: the name may contain anything."""
SINFO_FORMAT = "%N|%T|%E"
"""Node, state, and why it takes no jobs."""
SACCT_FORMAT = "JobIDRaw,State,ExitCode,NodeList,Reason,JobName"

ACTIVE_STATES = frozenset(
    ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING")
) | frozenset(("REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"))
"""States of a job that has not ended; every other state is final."""

NO_STATE_DIRECTORY = 90
"""Exit code of a job whose node does not see the directory of the run."""
STARTED_BEFORE = 91
"""Exit code of a job that Slurm starts again, although its run has started already."""

_PAIR = re.compile(r"(?:^|\s)([A-Za-z]\w*(?:/\w+)?)=(\S*)")
_NAME = re.compile(r"(?:^|\s)JobName=(.*?)(?=\s+UserId=|$)")
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


class Job(NamedTuple):
    """One job as squeue lists it."""

    id: int
    state: str
    """Slurm's word, like PENDING."""
    partition: str
    priority: int
    nodes: str
    """Node list like n[1-3]; empty before the job has nodes."""
    start: str
    """Expected start of a pending job, as Slurm prints times; empty if Slurm does not expect one."""
    reason: str
    """Why a pending job waits, in one word like Priority."""
    name: str

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE_STATES

    @property
    def is_pending(self) -> bool:
        return self.state in ("PENDING", "CONFIGURING")


class End(NamedTuple):
    """How Slurm says that a job ended."""

    id: int
    state: str
    reason: str
    exit_code: int
    signal: int
    nodes: str
    time_limit: str
    """As Slurm prints it; empty if unknown."""

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE_STATES


class Partition(NamedTuple):
    name: str
    is_up: bool
    max_time_s: float | None
    """None: no limit."""
    nodes: int
    max_nodes: int | None
    """Nodes of one job; None: no limit."""


def jobs_of(text: str) -> list[Job]:
    """Read the output of squeue with SQUEUE_FORMAT; lines of arrays and steps are left out."""
    jobs = []
    for line in text.splitlines():
        parts = line.split("|", 7)
        if len(parts) == 8 and parts[0].isdecimal():
            number, state, partition, priority, nodes, start, reason, name = parts
            start = "" if start in ("N/A", "Unknown", "") else start
            value = int(priority) if priority.isdecimal() else 0
            jobs.append(Job(int(number), state, partition, value, nodes, start, reason.strip("()"), name))
    return jobs


def places(pending: Iterable[Job]) -> dict[int, tuple[int, int]]:
    """Return for each pending job its place among those of its partition, from 1, and their number."""
    by_partition: dict[str, list[Job]] = {}
    for job in pending:
        by_partition.setdefault(job.partition, []).append(job)
    return {
        job.id: (place, len(waiting))
        for waiting in by_partition.values()
        for place, job in enumerate(sorted(waiting, key=lambda job: (-job.priority, job.id)), start=1)
    }


def end_of(text: str) -> End | None:
    """Read the output of `scontrol show job --oneliner`; None if it shows no job."""
    facts = dict(_PAIR.findall(_NAME.sub("", text)))
    if "JobId" not in facts or "JobState" not in facts:
        return None
    code, signal = _exit_code(facts.get("ExitCode", ""))
    return End(
        int(facts["JobId"]),
        facts["JobState"],
        "" if facts.get("Reason") in (None, "None") else facts["Reason"],
        code,
        signal,
        "" if facts.get("NodeList") in (None, "(null)") else facts["NodeList"],
        facts.get("TimeLimit", ""),
    )


def accounted_end(text: str, name: str) -> End | None:
    """Read the output of `sacct --parsable2` with SACCT_FORMAT; None if it has no job of this name."""
    for line in reversed(text.splitlines()):
        parts = line.split("|", 5)
        if len(parts) == 6 and parts[5] == name and parts[0].isdecimal():
            code, signal = _exit_code(parts[2])
            # "CANCELLED by 1000" names a user id.
            reason = "" if parts[4] in ("None", "") else parts[4]
            nodes = "" if parts[3] == "None assigned" else parts[3]
            return End(int(parts[0]), parts[1].partition(" ")[0], reason, code, signal, nodes, "")
    return None


def drained_of(text: str) -> str:
    """Read the output of sinfo with SINFO_FORMAT: the nodes that take no jobs, each with the reason; empty for none."""
    rows = dict.fromkeys(tuple(line.split("|", 2)) for line in text.splitlines() if line.count("|") >= 2)
    return ", ".join(f"{node} ({reason.strip()})" for node, state, reason in rows if state.startswith("drain"))


def partitions_of(text: str) -> dict[str, Partition]:
    """Read the output of `scontrol show partition --oneliner`: name -> partition."""
    partitions = {}
    for line in text.splitlines():
        facts = dict(_PAIR.findall(line))
        if name := facts.get("PartitionName"):
            most, total = facts.get("MaxNodes", ""), facts.get("TotalNodes", "")
            partitions[name] = Partition(
                name,
                facts.get("State") == "UP",
                seconds_of(facts.get("MaxTime", "")),
                int(total) if total.isdecimal() else 0,
                int(most) if most.isdecimal() else None,
            )
    return partitions


def gpus_of(text: str) -> int:
    """Return the most GPUs that one node offers, from the output of `sinfo --format=%G`."""
    return max((_gpus(line) for line in text.splitlines()), default=0)


def _gpus(resources: str) -> int:
    # gpu:4 or gpu:a100:4(S:0-1), several separated by commas that parentheses may contain too
    plain = re.sub(r"\([^)]*\)", "", resources)
    counts = [part.rpartition(":")[2] for part in plain.split(",") if part.startswith("gpu:")]
    return sum(int(count) for count in counts if count.isdecimal())


def seconds_of(text: str) -> float | None:
    """Return a time limit as Slurm prints it, [days-][hours:]minutes:seconds, in seconds; None if there is none."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def waiting_text(job: Job, place: tuple[int, int] | None) -> str:
    """Return why a job waits: Slurm's reason, its place in the queue, and the expected start."""
    where = f", place {place[0]} of {place[1]} in partition {job.partition}" if place else ""
    when = f", expected to start {_with_zone(job.start)}" if job.start else ""
    return f"Slurm job {job.id} is {job.state}: {job.reason or 'no reason given'}{where}{when}"


def _with_zone(start: str) -> str:
    """Return a time of squeue, which is that of this machine, with the offset of its time zone."""
    try:
        return datetime.fromisoformat(start).astimezone().isoformat(" ", "minutes")
    except ValueError:
        return start


ENDINGS: Mapping[str, Words] = {
    "TIMEOUT": Words(
        RunState.TIME_LIMIT,
        "its time limit{limit} is over; raise slurm.time_limit_s, or let the run do fewer iterations",
    ),
    "DEADLINE": Words(RunState.TIME_LIMIT, "its deadline has passed"),
    "PREEMPTED": Words(RunState.PREEMPTED, "a job of higher priority took its nodes"),
    "NODE_FAIL": Words(RunState.LOST, "one of its nodes failed; see sinfo --list-reasons"),
    "BOOT_FAIL": Words(RunState.LOST, "one of its nodes could not be booted; see sinfo --list-reasons"),
    "REVOKED": Words(RunState.LOST, "another cluster of the federation took it"),
    "CANCELLED": Words(RunState.CANCELLED, "it was cancelled in Slurm, outside of parlab"),
    "OUT_OF_MEMORY": Words(
        RunState.OOM, "a node ran out of the memory of the job; raise slurm.memory_mib, or use a smaller batch"
    ),
}
"""Final state of a job -> state and text of the run; all others mean that its processes ended badly."""


def ending(end: End, directory: str, *, has_started: bool, drained: str = "") -> Words:
    """Return how a run ended that has left no final report, from how its job ended.

    `directory` is that of the run; `has_started` is whether its supervisor has started there. `drained` are nodes of
    the job that take no jobs any more: one whose prolog fails is drained, and its job is cancelled.
    """
    where = f" on {end.nodes}" if end.nodes else ""
    prefix = f"Slurm job {end.id}{where} ended as {end.state}"
    if end.exit_code == NO_STATE_DIRECTORY or end.signal == 53:  # Slurm's own code for output it could not open
        return Words(
            RunState.FAILED,
            f"{prefix}: a node does not see {directory}; start the daemon with a --state-dir on a file system that"
            " the login node and all compute nodes share",
        )
    if end.exit_code == STARTED_BEFORE:
        return Words(
            RunState.LOST, f"{prefix}: Slurm started it a second time (requeue), which would double its output"
        )
    if drained and not has_started and end.state in ("CANCELLED", "FAILED"):
        return Words(RunState.LOST, f"{prefix} before its supervisor started: drained meanwhile: {drained}")
    matched_ending = ENDINGS.get(end.state)
    if matched_ending is not None:
        limit = f" {end.time_limit}" if end.time_limit else ""
        return Words(matched_ending.state, f"{prefix}: {matched_ending.text.format(limit=limit)}")
    code = f"signal {end.signal}" if end.signal else f"exit code {end.exit_code}"
    if has_started:
        return Words(RunState.LOST, f"{prefix} with {code}: its supervisor was killed")
    return Words(RunState.FAILED, f"{prefix} with {code} before its supervisor started")


def _exit_code(text: str) -> tuple[int, int]:
    """Read CODE:SIGNAL."""
    code, _, signal = text.partition(":")
    return (int(code) if code.isdecimal() else 0, int(signal) if signal.isdecimal() else 0)
