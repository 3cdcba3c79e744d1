"""Faults that kill: whom each one strikes, what brings the victim back, and which attempts must end how."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import psutil

from parlab.fleet import services
from parlab.lab.models import Attempt, Member, Run
from parlab.lab.services.members import first_cause
from runners.node.rundir import RunDir
from runners.wire.protocol import RunState
from tests.faults.stack import NODES, WEB, Stack
from tests.faults.workload import RANKS, Key, Workload
from tests.slurm.cluster import NODES as SLURM_NODES

SHORT_S = (1.0, 12.0)
"""Duration of a fault that a node must survive: below the lease, after which its runs are lost."""


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
    hold_s: float = 0.0
    """How long the fault lasts before its repair."""
    comes_back_late: bool = False
    """The victim comes back only after the attempts that it ends have ended."""
    wrong: list[str] = field(default_factory=list)
    """What was wrong already when it happened or was repaired."""
    spooled: dict[tuple[Key, int], int] = field(default_factory=dict)
    """(attempt, rank) -> last step that was surely in the spool before its supervisor was killed."""


@dataclass
class Scene:
    """Where a fault strikes, and what other faults of the same moment have struck already."""

    stack: Stack
    workload: Workload
    rng: random.Random
    is_long: bool = True
    """Whether faults of this moment may last for up to a minute; others end before a lease does."""
    victims: set[str] = field(default_factory=set)
    ending: set[Key] = field(default_factory=set)
    attempts: list[tuple[Key, Attempt]] = field(init=False)
    """The current attempts; asked for once, because the first of the faults may take the database away."""

    def __post_init__(self) -> None:
        current = sorted(self.workload.current().items())
        self.attempts = [((run, attempt.number), attempt) for run, attempt in current]

    def choose(self, candidates: Iterable[str]) -> str | None:
        """Return a victim that is not struck yet; None if there is none."""
        left = sorted(set(candidates) - self.victims)
        if not left:
            return None
        self.victims.add(victim := self.rng.choice(left))
        return victim

    def hold_s(self, long_s: float = 0.0) -> float:
        """Return how long a fault lasts: `long_s` if it is given and this moment may last long."""
        return long_s if self.is_long and long_s else self.rng.uniform(*SHORT_S)

    def active(self) -> list[tuple[Key, Attempt]]:
        """Return the attempts that no fault ends yet."""
        return [(key, attempt) for key, attempt in self.attempts if key not in self.ending]


Strike = Callable[[Scene], "Fault | None"]


def kill_daemon(scene: Scene) -> Fault | None:
    """Kill a daemon: its runs go on."""
    return _kill_service(scene, scene.stack.daemons, "daemon ")


def kill_server(name: str) -> Strike:
    """Return a strike that kills a process of the server: all runs go on."""
    return lambda scene: _kill_service(scene, [name])


def _kill_service(scene: Scene, names: Iterable[str], title: str = "") -> Fault | None:
    name = scene.choose(names)
    if name is None:
        return None
    service = scene.stack.services[name]
    service.end()
    return Fault(title + name, service.start)


def kill_slurmd(scene: Scene) -> Fault | None:
    """Kill a slurmd: the jobs on its node go on."""
    cluster = scene.stack.cluster
    node = scene.choose(SLURM_NODES) if cluster is not None else None
    if cluster is None or node is None:
        return None
    cluster.kill_node(node)
    return Fault(f"slurmd {node}", lambda: cluster.start_node(node))


def _kill(process: psutil.Process) -> None:
    process.send_signal(signal.SIGKILL)


def kill_rank(scene: Scene, kill: Callable[[psutil.Process], None] = _kill) -> Fault | None:
    """Kill a rank: its attempt fails on all nodes, and the rank is named."""
    active = scene.active()
    if not active:
        return None
    key, attempt = scene.rng.choice(active)
    nodes = attempt.run.resolved["cluster"]["nodes"]
    rank = scene.rng.randrange(nodes * RANKS)
    noted = scene.stack.witness / f"{key[0]}-{key[1]}-{rank}.pid"
    if not noted.exists():
        return None  # not started yet
    pid = int(noted.read_text())
    with contextlib.suppress(psutil.Error, OSError):
        kill(psutil.Process(pid))

    def cause(ended: Attempt, member: Member) -> str:
        expected = [f"rank {rank}", "SIGKILL", *([f"node {member.place_name}"] if nodes > 1 else [])]
        is_named = all(text in ended.reason for text in expected)
        is_there = member.node_rank == rank // RANKS and member.first_failed_rank == rank
        return "" if is_named and is_there else f"cause is node {member.node_rank}: {ended.reason}"

    return Fault(f"rank {rank} of run {key[0]}", ends={key: RunState.FAILED}, cause=cause)


def kill_supervisor(scene: Scene) -> Fault | None:
    """Kill a supervisor: its attempt is lost on all nodes, and the next one starts."""
    fault_and_run = supervisor_killed(scene)
    return fault_and_run[0] if fault_and_run else None


def supervisor_killed(scene: Scene) -> tuple[Fault, RunDir] | None:
    """Kill a supervisor; return also the run whose supervisor it was."""
    keys = {key for key, _ in scene.active()}
    stack = scene.stack
    runs = [run for node in stack.daemons for run in stack.runs(node) if (run.run, run.attempt) in keys]
    held = [run for run in runs if stack.supervisor(run) is not None]
    if not held:
        return None
    run = scene.rng.choice(sorted(held, key=lambda run: run.path.name))
    fault = Fault(f"supervisor {run.node_rank} of run {run.run}", ends={(run.run, run.attempt): RunState.LOST})
    strike_supervisor(stack, run, fault)

    def cause(ended: Attempt, member: Member) -> str:
        is_right = member.node_rank == run.node_rank and "supervisor" in ended.reason
        return "" if is_right else f"cause is node {member.node_rank}: {ended.reason}"

    fault.cause = cause
    return fault, run


def kill_node(scene: Scene, nodes: Iterable[str] = NODES) -> Fault | None:
    """Kill everything on a node at once; its daemon comes back after the lease of its runs."""
    stack = scene.stack
    node = scene.choose(nodes) if scene.is_long and not scene.ending else None
    if node is None:
        return None
    service = stack.services[node]
    fault = Fault(f"node {node}", service.start, comes_back_late=True)
    service.end()
    marked = [process for key, process in stack.processes()]
    marker = stack.state(node).id
    for run in stack.runs(node):
        fault.ends[run.run, run.attempt] = RunState.LOST
        strike_supervisor(stack, run, fault)
    for process in marked:
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PARLAB_RUN", "").startswith(marker):
                process.send_signal(signal.SIGKILL)

    fault.cause = lost_with(node)
    return fault


def lost_with(node: str) -> Callable[[Attempt, Member], str]:
    """Return the check that an attempt was lost with a node."""

    def cause(ended: Attempt, member: Member) -> str:
        is_right = member.node_name == node and node in ended.reason
        return "" if is_right else f"cause is node {member.node_name}: {ended.reason}"

    return cause


def cancel(scene: Scene) -> Fault | None:
    """Cancel a run: no fault, but its end is measured like those of faults."""
    active = scene.active()
    if not active or scene.victims & {"database", "disk of database"}:
        return None
    key, _ = scene.rng.choice(active)
    try:
        services.cancel(run=Run.objects.get(pk=key[0]))
    except ValueError:  # it has just ended
        return None
    return Fault(f"cancel of run {key[0]}", ends={key: RunState.CANCELLED})


def strike_supervisor(stack: Stack, run: RunDir, fault: Fault) -> None:
    """Kill a supervisor; remember what it had surely read."""
    key = run.run, run.attempt
    ranks = range(run.node_rank * RANKS, (run.node_rank + 1) * RANKS)
    # What was printed a moment ago has been read: a supervisor reads as soon as there is output.
    before = {rank: _last_spooled(run, rank) for rank in ranks}
    supervisor = stack.supervisor(run)
    if supervisor is not None:
        with contextlib.suppress(psutil.Error):
            supervisor.send_signal(signal.SIGKILL)
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


KILLED: dict[str, Strike] = {
    "daemon": kill_daemon,
    "supervisor": kill_supervisor,
    "rank": kill_rank,
    "slurmd": kill_slurmd,
    "node": kill_node,
    "cancel": cancel,
    "worker": kill_server("worker"),
    "beat": kill_server("beat"),
    "redis": kill_server("redis"),
    "web": kill_server(WEB),
}
DEFAULT_KINDS = ("daemon", "supervisor", "rank", "slurmd")
