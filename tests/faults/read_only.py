"""A disk that is read-only after a restart of what uses it, as after an error of the file system."""

from __future__ import annotations

import time

from django.db import connection

from tests.faults.kinds import Fault, Scene, kill_node
from tests.faults.stack import NODES, WEB, WORKERS, Stack
from tests.patience import PATIENCE_S

DATABASE, REDIS = "database", "redis"


def restart_on_read_only_disk(scene: Scene) -> Fault | None:
    """Kill what uses a disk, make the disk read-only, and start it again; it works once the disk is writable."""
    # The runs of a node are lost, after their lease.
    names = (DATABASE, REDIS, *(NODES if scene.is_long else ()))
    disks = [name for name in names if scene.stack.disks[name].is_mounted]
    users = {DATABASE: {*WORKERS, "beat", WEB, DATABASE, f"disk of {DATABASE}"}, REDIS: {REDIS, f"disk of {REDIS}"}}
    free = [name for name in disks if not users.get(name, {name, f"disk of {name}"}) & scene.victims]
    if not free:
        return None
    name = scene.rng.choice(free)
    if name in NODES:
        return _node(scene, name)
    scene.victims.update(users[name])
    _restart_read_only(scene.stack, name)
    return Fault(f"disk of {name}", lambda: _repair(scene.stack, name), hold_s=scene.hold_s())


def _node(scene: Scene, name: str) -> Fault | None:
    """A machine that starts again with a read-only disk: its runs are lost, and its daemon says why it cannot run."""
    fault = kill_node(scene, [name])
    if fault is None:
        return None
    fault.victim = f"disk of {name}"
    scene.victims.add(fault.victim)
    _restart_read_only(scene.stack, name)
    fault.repair = lambda: _repair(scene.stack, name)
    return fault


def _users(stack: Stack, name: str) -> list[str]:
    """Return the processes that write to a disk."""
    return [*WORKERS, "beat", WEB] if name == DATABASE and stack.database is None else [name]


def _restart_read_only(stack: Stack, name: str) -> None:
    users = [user for user in _users(stack, name) if user in stack.services]
    for user in users:
        stack.services[user].end()
    if name == DATABASE:
        connection.close()
        if stack.database is not None:
            stack.database.stop_at_once()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            stack.disks[name].make_read_only()
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)  # what was killed is still closing its files
    for user in users:
        stack.services[user].start()
    if name == DATABASE and stack.database is not None:
        stack.database.try_to_start()  # it cannot on this disk


def _repair(stack: Stack, name: str) -> None:
    stack.disks[name].make_writable()
    for user in _users(stack, name):
        if user in stack.services and not stack.services[user].is_running:
            stack.services[user].start()  # as systemd does
    if name == DATABASE and stack.database is not None:
        stack.database.start_again()
