"""The table of faults: whom each one strikes, what brings the victim back, and which attempts must end how."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from parlab.fleet import services
from parlab.lab.models import Attempt, Member, Run
from parlab.lab.services import first_cause
from runners.protocol import RunState
from runners.rundir import RunDir
from tests.faults.stack import LOGIN, NODES, Stack
from tests.faults.workload import RANKS, Key, Workload, Wrong
from tests.slurm.cluster import NODES as SLURM_NODES


@dataclass
class Fault:
    """One fault that has happened."""

    victim: str
    repair: Callable[[], None] | None = None
    """Brings the victim back, as systemd does; None: parlab alone recovers."""
    ends: dict[Key, RunState] = field(default_factory=dict)
    """Attempts that must end, and how; all others must go on."""
    cause: Callable[[Attempt, Member], str] | None = None
    """Returns what is wrong with the first cause of an attempt that has ended; empty if nothing is."""
    killed_spools: list[tuple[Key, int]] = field(default_factory=list)
    """(attempt, node_rank) of killed supervisors."""
    spooled: dict[tuple[Key, int], int] = field(default_factory=dict)
    """(attempt, rank) -> last step that was surely in the spool before its supervisor was killed."""


Strike = Callable[[Stack, Workload, random.Random], "Fault | None"]


def kill_daemon(stack: Stack, workload: Workload, rng: random.Random) -> Fault:
    """Kill a daemon: its runs go on."""
    service = stack.services[rng.choice(stack.daemons)]
    service.end()
    return Fault(f"daemon {service.name}", service.start)


def kill_slurmd(stack: Stack, workload: Workload, rng: random.Random) -> Fault | None:
    """Kill a slurmd: the jobs on its node go on."""
    if stack.cluster is None:
        return None
    cluster, node = stack.cluster, rng.choice(SLURM_NODES)
    cluster.kill_node(node)
    return Fault(f"slurmd {node}", lambda: cluster.start_node(node))


def kill_rank(stack: Stack, workload: Workload, rng: random.Random) -> Fault | None:
    """Kill a rank: its attempt fails on all nodes, and the rank is named."""
    run, attempt = rng.choice(sorted(workload.current().items()))
    nodes = attempt.run.resolved["cluster"]["nodes"]
    rank = rng.randrange(nodes * RANKS)
    key = run, attempt.number
    pid = int((stack.witness / f"{run}-{attempt.number}-{rank}.pid").read_text())
    with contextlib.suppress(psutil.Error):
        psutil.Process(pid).send_signal(signal.SIGKILL)

    def cause(ended: Attempt, member: Member) -> str:
        expected = [f"rank {rank}", "SIGKILL", *([f"node {member.node_name}"] if nodes > 1 else [])]
        is_named = all(text in ended.reason for text in expected)
        is_there = member.node_rank == rank // RANKS and member.first_failed_rank == rank
        return "" if is_named and is_there else f"cause is node {member.node_rank}: {ended.reason}"

    return Fault(f"rank {rank} of run {run} ({nodes} nodes)", ends={key: RunState.FAILED}, cause=cause)


def kill_supervisor(stack: Stack, workload: Workload, rng: random.Random) -> Fault | None:
    """Kill a supervisor: its attempt is lost on all nodes, and the next one starts."""
    held = [(node, run) for node in stack.daemons for run in stack.runs(node) if stack.supervisor(run) is not None]
    node, run = rng.choice(sorted(held, key=lambda pair: (pair[0], pair[1].path.name)))
    fault = Fault(f"supervisor of {run} on {node}", ends={(run.run, run.attempt): RunState.LOST})
    _strike_supervisor(stack, workload, run, fault)

    def cause(ended: Attempt, member: Member) -> str:
        is_right = member.node_rank == run.node_rank and "supervisor" in ended.reason
        return "" if is_right else f"cause is node {member.node_rank}: {ended.reason}"

    fault.cause = cause
    return fault


def kill_node(stack: Stack, workload: Workload, rng: random.Random) -> Fault:
    """Kill everything on a node at once; its daemon comes back after the lease of its runs."""
    node = rng.choice(NODES)
    service = stack.services[node]
    fault = Fault(f"node {node}", service.start)
    service.end()
    marked = [process for key, process in stack.processes()]
    marker = stack.state(node).id
    for run in stack.runs(node):
        fault.ends[run.run, run.attempt] = RunState.LOST
        _strike_supervisor(stack, workload, run, fault)
    for process in marked:
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PARLAB_RUN", "").startswith(marker):
                process.send_signal(signal.SIGKILL)

    def cause(ended: Attempt, member: Member) -> str:
        is_right = member.node_name == node and node in ended.reason
        return "" if is_right else f"cause is node {member.node_name}: {ended.reason}"

    fault.cause = cause
    return fault


def cancel(stack: Stack, workload: Workload, rng: random.Random) -> Fault:
    """Cancel a run: no fault, but its end is measured like those of faults."""
    run, attempt = rng.choice(sorted(workload.current().items()))
    nodes = attempt.run.resolved["cluster"]["nodes"]
    services.cancel(run=Run.objects.get(pk=run))
    return Fault(f"cancel of run {run} ({nodes} nodes)", ends={(run, attempt.number): RunState.CANCELLED})


def kill_server(name: str) -> Strike:
    """Return a strike that kills a process of the server: all runs go on."""

    def strike(stack: Stack, workload: Workload, rng: random.Random) -> Fault:
        service = stack.services[name]
        service.end()
        return Fault(name, service.start)

    return strike


def _strike_supervisor(stack: Stack, workload: Workload, run: RunDir, fault: Fault) -> None:
    key = run.run, run.attempt
    ranks = range(run.node_rank * RANKS, (run.node_rank + 1) * RANKS)
    # What was printed a moment ago has been read: a supervisor reads as soon as there is output.
    before = {rank: _last_spooled(run, rank) for rank in ranks}
    supervisor = stack.supervisor(run)
    if supervisor is not None:
        with contextlib.suppress(psutil.Error):
            supervisor.send_signal(signal.SIGKILL)
    fault.killed_spools.append((key, run.node_rank))
    fault.spooled |= {(key, rank): step for rank, step in before.items()}


def _last_spooled(run: RunDir, rank: int) -> int:
    """Return the last step of a rank in the segments of a spool that still exist; 0 if none does."""
    text = b""
    for path in sorted(run.spool.glob("*.spool"))[-2:]:
        with contextlib.suppress(OSError):
            text += path.read_bytes()
    _, found, rest = text.rpartition(b'"rank":%d,"event":"step","step":' % rank)
    digits = rest[:12].partition(b",")
    return int(digits[0]) if found and digits[1] else 0


KINDS: dict[str, Strike] = {
    "daemon": kill_daemon,
    "supervisor": kill_supervisor,
    "rank": kill_rank,
    "slurmd": kill_slurmd,
    "node": kill_node,
    "cancel": cancel,
    "worker": kill_server("worker"),
    "beat": kill_server("beat"),
    "redis": kill_server("redis"),
}
DEFAULT_KINDS = ("daemon", "supervisor", "rank", "slurmd")


def problem_of_cause(fault: Fault, attempt: Attempt) -> str:
    """Return what is wrong with how an attempt ended; empty if nothing is."""
    members = list(Member.objects.filter(attempt=attempt).select_related("node").order_by("node_rank"))
    cause = first_cause(members)
    if cause is None:
        return f"it ended as {attempt.state} without a cause"
    others = [member for member in members if member.pk != cause.pk]
    bad = [
        m for m in others if attempt.state != RunState.CANCELLED and m.member_state.is_bad_end and not m.is_consequence
    ]
    if bad:
        return f"node {bad[0].node_rank} is no consequence: {bad[0].state} {bad[0].reason}"
    if any(member.is_active for member in members):
        return "a member is still active"
    return fault.cause(attempt, cause) if fault.cause else ""


__all__ = ["DEFAULT_KINDS", "KINDS", "LOGIN", "Fault", "Wrong", "problem_of_cause"]
