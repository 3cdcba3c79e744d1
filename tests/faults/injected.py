"""Faults that do not kill: pauses, connections, messages, disks, clocks and daemons that exist twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import redis

from parlab.client.journal import Kind, encode
from runners.node.rundir import StateDir
from runners.wire.protocol import BACKLOG_QUEUE, CONTROL_QUEUE, INGEST_QUEUE, RunState, node_queue
from tests.faults import clock, read_only
from tests.faults.kinds import KILLED, Fault, Scene, Strike, kill_rank, lost_with, supervisor_killed
from tests.faults.stack import NODES, WEB, WORKERS, Service, Stack

LONG_S = 60.0
"""Duration of a pause that lasts longer than the lease of a run."""
HOUR_S = 3600
COLLECT_S = 3.0
"""How long readers are paused so that messages gather in a queue."""
MEMORY_BYTES = 32 << 20


def pause_server(scene: Scene) -> Fault | None:
    """Stop a process of the server for up to a minute: all runs go on."""
    return _pause(scene, ["redis", "beat", WEB, *WORKERS], scene.hold_s(LONG_S))


def pause_daemon(scene: Scene) -> Fault | None:
    """Stop a daemon: its runs go on, or are lost on all nodes if that outlasts the lease."""
    if not scene.is_long or scene.victims or scene.ending:
        return _pause(scene, scene.stack.daemons, scene.hold_s())
    fault = _pause(scene, NODES, LONG_S)
    if fault is None:
        return None
    # A server that is away for half of this time would not see the end of the lease.
    scene.victims.update(["redis", "beat", "database", *WORKERS])
    node = fault.victim.partition(" ")[0]
    keys = {key for key, _ in scene.active()}
    held = [(run.run, run.attempt) for run in scene.stack.runs(node)]
    fault.ends = {key: RunState.LOST for key in held if key in keys}
    fault.cause = lost_with(node)
    return fault


def pause_supervisor(scene: Scene) -> Fault | None:
    """Stop a supervisor for up to a minute: its run goes on."""
    stack = scene.stack
    runs = [run for node in NODES for run in stack.runs(node)]
    held = [process for run in runs if (process := stack.supervisor(run)) is not None]
    if not held or scene.ending:
        return None
    process = scene.rng.choice(held)
    process.suspend()

    def resume() -> None:
        with contextlib.suppress(psutil.Error):
            process.resume()

    hold_s = scene.hold_s(LONG_S)
    return Fault(f"supervisor {process.pid} for {hold_s:.0f} s", resume, hold_s=hold_s)


def _pause(scene: Scene, names: Iterable[str], hold_s: float) -> Fault | None:
    name = scene.choose(names)
    if name is None:
        return None
    service = scene.stack.services[name]
    service.pause()
    return Fault(f"{name} for {hold_s:.0f} s", service.resume, hold_s=hold_s)


def empty_redis(scene: Scene) -> Fault | None:
    """Remove everything from Redis: all runs go on."""
    if scene.choose(["redis"]) is None:
        return None
    with _client(scene.stack) as client:
        client.flushall()
    return Fault("all keys of redis")


def wipe_redis(scene: Scene) -> Fault | None:
    """Kill Redis and delete its files: all runs go on."""
    if scene.choose(["redis"]) is None:
        return None
    service = scene.stack.services["redis"]
    service.end()
    for path in sorted(scene.stack.disks["redis"].path.rglob("*"), reverse=True):
        if path.name == "redis.conf":
            continue
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    return Fault("redis with its files", service.start)


def cut(scene: Scene) -> Fault | None:
    """Cut the connection of a node to Redis for less than the lease."""
    node = scene.choose(NODES)
    if node is None:
        return None
    proxy = scene.stack.proxies[node]
    proxy.cut()
    return Fault(f"connection of {node}", proxy.restore, hold_s=scene.hold_s())


def web_away(scene: Scene) -> Fault | None:
    """Kill the web process and start it again after up to a minute: what scripts report meanwhile arrives later."""
    if scene.choose([WEB]) is None:
        return None
    service = scene.stack.services[WEB]
    service.end()
    return Fault(WEB, service.start, hold_s=scene.hold_s(LONG_S))


def web_cut(scene: Scene) -> Fault | None:
    """Cut the connection of a script to the web process, also in the middle of a request."""
    if scene.choose([f"connection of {WEB}"]) is None:
        return None
    proxy = scene.stack.proxies[WEB]
    proxy.cut()
    return Fault(f"connection to {WEB}", proxy.restore, hold_s=scene.hold_s())


def slow(scene: Scene) -> Fault | None:
    """Delay everything between a node and Redis."""
    node = scene.choose(NODES)
    if node is None:
        return None
    proxy = scene.stack.proxies[node]
    proxy.delay_s = scene.rng.uniform(0.1, 1.0)
    victim = f"connection of {node}, {proxy.delay_s:.1f} s"
    return Fault(victim, proxy.restore, hold_s=scene.hold_s())


def deliver_twice(scene: Scene) -> Fault | None:
    """Deliver all waiting messages twice."""
    return _with_messages(scene, lambda messages: messages + messages)


def deliver_in_wrong_order(scene: Scene) -> Fault | None:
    """Deliver waiting messages in another order."""
    return _with_messages(scene, lambda messages: scene.rng.sample(messages, len(messages)))


def deliver_late(scene: Scene) -> Fault | None:
    """Hold back waiting messages and deliver them after later ones."""
    return _with_messages(scene, lambda _: [], hold_s=scene.hold_s())


def _with_messages(scene: Scene, change: Callable[[list[bytes]], list[bytes]], hold_s: float = 0.0) -> Fault | None:
    """Replace the messages that wait for the server or for a node; those left out come back with the repair."""
    node = scene.rng.choice([None, *NODES])
    if {*WORKERS, "redis", node} & scene.victims:
        return None
    scene.victims.update(WORKERS)
    held: list[tuple[str, list[bytes]]] = []
    count = 0
    with _gathered(scene.stack, node), _client(scene.stack) as client:
        for queue in (CONTROL_QUEUE, INGEST_QUEUE, BACKLOG_QUEUE) if node is None else _queues(scene.stack, node):
            messages: list[bytes] = client.lrange(queue, 0, -1)  # type: ignore[assignment]  # the client is no asynchronous one
            if not messages:
                continue
            count += len(messages)
            after = change(messages)
            with client.pipeline() as pipeline:
                pipeline.delete(queue)
                if after:
                    pipeline.rpush(queue, *after)
                else:
                    held.append((queue, messages))
                pipeline.execute()
    if held:
        scene.victims.add("redis")  # which has to take them back

    def give_back() -> None:
        with _client(scene.stack) as client:
            for queue, messages in held:
                client.lpush(queue, *messages)

    return Fault(f"{count} messages for {node or 'the server'}", give_back if held else None, hold_s=hold_s)


def _queues(stack: Stack, node: str) -> tuple[str, ...]:
    return node_queue(node, StateDir(stack.states[node]).id), node_queue(node)


@contextlib.contextmanager
def _gathered(stack: Stack, node: str | None) -> Iterator[None]:
    """Let messages for the server wait or, of the answers to them, those for a node."""
    with _paused(stack, WORKERS):
        time.sleep(COLLECT_S)
        if node is None:
            yield
            return
        stack.services[node].pause()
    try:
        time.sleep(COLLECT_S)
        yield
    finally:
        stack.services[node].resume()


@contextlib.contextmanager
def _paused(stack: Stack, names: tuple[str, ...]) -> Iterator[None]:
    for name in names:
        stack.services[name].pause()
    try:
        yield
    finally:
        for name in names:
            stack.services[name].resume()


@contextlib.contextmanager
def _client(stack: Stack) -> Iterator[redis.Redis]:
    client = redis.Redis(port=stack.redis_port, socket_timeout=30)
    try:
        yield client
    finally:
        client.close()


def fill_disk(scene: Scene) -> Fault | None:
    """Fill the disk of a node, of Redis or of the database for less than the grace time of a run."""
    mounted = {name for name, disk in scene.stack.disks.items() if disk.is_mounted}
    # What uses these disks alone cannot be started on a full one, nor be emptied.
    mounted -= {"database", "redis"} & scene.victims
    name = scene.choose(f"disk of {name}" for name in mounted)
    if name is None:
        return None
    scene.victims |= {name.removeprefix("disk of ")} & {"database", "redis"}
    disk = scene.stack.disks[name.removeprefix("disk of ")]
    disk.fill()

    def repair() -> None:
        disk.free()
        service = scene.stack.services.get(disk.path.name)
        if service is not None and not service.is_running:
            service.start()  # as systemd does
        if disk.path.name == "database" and scene.stack.database is not None:
            scene.stack.database.start_again()

    return Fault(name, repair, hold_s=scene.hold_s())


def jump_clock(scene: Scene) -> Fault | None:
    """Let the clock of a node or of a process of the server jump by an hour, and back."""
    if clock.preload() is None:
        return None
    name = scene.choose(f"clock of {name}" for name in [*NODES, *WORKERS, "beat", WEB])
    if name is None:
        return None
    path = scene.stack.root / f"{name.removeprefix('clock of ')}.clock"
    offset_s = scene.rng.choice([-HOUR_S, HOUR_S])
    clock.set_offset(path, offset_s)
    victim = f"{name} by {offset_s:+d} s"
    return Fault(victim, lambda: clock.set_offset(path, 0), hold_s=scene.hold_s())


def start_twin(scene: Scene) -> Fault | None:
    """Start another daemon with the name of a node: it gets nothing to do, and all runs go on."""
    node = scene.choose(NODES)
    if node is None:
        return None
    stack = scene.stack
    original = stack.services[node]
    directory = stack.root / f"{node}-twin"
    argv = [str(directory) if argument == str(stack.states[node]) else argument for argument in original.argv]
    twin = Service(f"{node}-twin", argv, original.environment, stack.root / f"{node}-twin.log")
    twin.start()
    fault = Fault(f"another daemon named {node}", hold_s=scene.hold_s())

    def end() -> None:
        twin.end(signal.SIGTERM)
        if runs := list(directory.glob("runs/*")):
            fault.wrong.append(f"the twin of {node} has runs: {[run.name for run in runs]}")

    fault.repair = end
    return fault


def start_again(scene: Scene) -> Fault | None:
    """Start a daemon that runs already: the second one refuses."""
    node = scene.choose(NODES)
    if node is None:
        return None
    service = scene.stack.services[node]
    log = scene.stack.root / f"{node}-again.log"
    with log.open("ab") as output:
        done = subprocess.run(
            service.argv, env=service.environment, stdout=output, stderr=output, timeout=120, check=False
        )
    fault = Fault(f"the daemon of {node} twice")
    if done.returncode == 0:
        fault.wrong.append(f"the second daemon of {node} ended with 0: {log.read_text()[-300:]}")
    return fault


def tear_spool(scene: Scene) -> Fault | None:
    """Kill a supervisor in the middle of a record: what was written before it stays."""
    killed = supervisor_killed(scene)
    if killed is None:
        return None
    fault, run = killed
    fault.victim = f"record of {fault.victim}"
    record = encode(Kind.OUTPUT, b"a line of which only the first half was written\n")
    segments = sorted(run.spool.glob("*.spool"))
    if segments:
        with contextlib.suppress(FileNotFoundError), segments[-1].open("r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(record[: len(record) // 2])
    return fault


def restart_database(scene: Scene) -> Fault | None:
    """Restart PostgreSQL without waiting for anybody: all runs go on."""
    database = scene.stack.database
    if database is None or scene.choose(["database"]) is None:
        return None
    database.stop_at_once()
    return Fault("database", database.start_again)


def out_of_memory(scene: Scene) -> Fault | None:
    """Let the kernel kill a rank that takes more memory than it may: its attempt fails like after SIGKILL."""
    return kill_rank(scene, _exhaust)


def _exhaust(process: psutil.Process) -> None:
    group = Path("/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").is_dir() else "/sys/fs/cgroup")
    group /= f"parlab-faults-{process.pid}"
    group.mkdir()
    is_second_version = (group / "memory.max").exists()
    (group / ("memory.max" if is_second_version else "memory.limit_in_bytes")).write_text(str(MEMORY_BYTES))
    (group / "cgroup.procs").write_text(str(process.pid))
    process.send_signal(signal.SIGUSR1)  # the rank takes memory until it is killed
    process.wait(60)
    group.rmdir()


def may_limit_memory() -> bool:
    """Return whether the kernel lets this process make a group with a limit."""
    group = Path("/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").is_dir() else "/sys/fs/cgroup")
    return os.access(group, os.W_OK) and os.geteuid() == 0


INJECTED: dict[str, Strike] = {
    "pause-server": pause_server,
    "pause-daemon": pause_daemon,
    "pause-supervisor": pause_supervisor,
    "redis-empty": empty_redis,
    "redis-wiped": wipe_redis,
    "cut": cut,
    "slow": slow,
    "web-away": web_away,
    "web-cut": web_cut,
    "read-only": read_only.restart_on_read_only_disk,
    "twice": deliver_twice,
    "disorder": deliver_in_wrong_order,
    "late": deliver_late,
    "twin": start_twin,
    "again": start_again,
    "torn": tear_spool,
    "full-disk": fill_disk,
    "clock": jump_clock,
    "database": restart_database,
    "out-of-memory": out_of_memory,
}
KINDS = KILLED | INJECTED


def impossible(kinds: Iterable[str], stack: Stack) -> dict[str, str]:
    """Return why kinds cannot be had on this machine, by name."""
    can_mount = any(disk.is_mounted for disk in stack.disks.values())
    reasons = {
        "full-disk": "" if can_mount else "mounting a tmpfs needs root",
        "read-only": "" if can_mount else "mounting a tmpfs needs root",
        "clock": "" if clock.preload() else "libfaketime is not installed (apt install faketime)",
        "database": "" if stack.database else "SQLite has no process; use --database postgres",
        "out-of-memory": "" if may_limit_memory() else "no right to make a cgroup with a limit of memory",
        "slurmd": "" if stack.cluster else "no Slurm cluster",
    }
    return {kind: reasons[kind] for kind in kinds if reasons.get(kind)}
