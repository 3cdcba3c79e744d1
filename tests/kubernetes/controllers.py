"""A controller whose runs are pods of the plane, and what a test needs to send it runs."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.node.jobs import reach
from runners.node.jobs.state import JobRecord, JobStateDir
from runners.node.kubernetes import manifests
from runners.node.kubernetes.without_volume import manifests as without_volume
from runners.supervisor.processes import marked
from tests.conftest import SMALL
from tests.kubernetes.plane.api import Object
from tests.kubernetes.plane.cluster import Plane
from tests.patience import wait_for
from tests.runners.conftest import NodeMachine, Server
from tests.slurm.conftest import AttentiveServer

__all__ = ["controller", "pods", "server"]

CLAIM = "state"
MEMBERS = {manifests.MEMBER, without_volume.MEMBER}
WAITS = """
import os, pathlib, sys, time
print("started in", os.environ["POD_NAME"], "secret", os.environ.get("PARLAB_NODE_KEY"), flush=True)
while not pathlib.Path(__file__).with_suffix(".open").exists():
    time.sleep(0.05)
print("done", flush=True)
"""
_numbers = itertools.count(1)


class Controller(NodeMachine):
    """A machine whose daemon creates pods, which see its state directory."""

    def __init__(self, root: Path, url: str, plane: Plane, namespace: str, kubeconfig: Path | None = None) -> None:
        super().__init__(root, url)
        self.plane, self.namespace = plane, namespace
        volume = plane.claim(namespace, CLAIM)
        self.state_dir = volume / "state"
        self.state_dir.mkdir()
        # What pods see besides is a copy of this machine's files.
        self.scripts = self.state_dir / "scripts"
        self.scripts.mkdir()
        self.image = "parlab-node:test"
        self.volume: tuple[str, ...] = ("--volume", f"claim:{CLAIM}/state")
        self.options = ("--slots", "16")
        self.environment |= {
            "KUBECONFIG": str(kubeconfig or plane.kubeconfig),
            "TEST_SCRIPTS": str(self.scripts),
            "PARLAB_KUBERNETES_OBJECTS": "pods",
            "PARLAB_KUBERNETES_SETTLE_S": "1",
            "PARLAB_KUBERNETES_NODE_S": "5",
        }
        del self.environment["PYTHONPATH"]

    @property
    def state(self) -> JobStateDir:
        return JobStateDir(self.state_dir)

    def arguments(self, *more: str) -> list[str]:
        given = ["--kubernetes", "--namespace", self.namespace, *self.volume]
        return super().arguments(*given, "--image", self.image, *more)

    def open(self, run: int) -> None:
        """Let the script of a run go on that waits for this."""
        (self.scripts / f"{run}.open").touch()

    def kill_daemon(self) -> None:
        """Kill the controller."""
        self.daemons[-1].send_signal(signal.SIGKILL)
        self.daemons[-1].wait()

    def record(self, run: int, attempt: int = 1) -> JobRecord:
        return self.state.job(run, attempt)

    def pod_name(self, run: int, attempt: int = 1, node_rank: int = 0) -> str:
        """Return the name of a pod."""
        return f"parlab-{self.state.id[:8]}-{run}-{attempt}-{node_rank}"

    def pod(self, run: int, attempt: int = 1, node_rank: int = 0) -> Object | None:
        """Return a pod as the server has it."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self.pod_name(run, attempt, node_rank)}"
        return self.plane.api.find(path)

    def pods(self) -> list[Object]:
        """Return all pods of the namespace."""
        return self.plane.pods(self.namespace)

    def delete(self, run: int, attempt: int = 1, node_rank: int = 0) -> None:
        """Delete a pod as kubectl does."""
        self.plane.api.delete(f"/api/v1/namespaces/{self.namespace}/pods/{self.pod_name(run, attempt, node_rank)}")

    def supervisor(self, run: int, node_rank: int = 0) -> psutil.Process:
        """Return the supervisor of a run: in its pod it has another number."""
        pod = self.pod_name(run, 1, node_rank)
        found = wait_for(lambda: members_of(pod), f"supervisor of run {run}")
        process: psutil.Process = found[-1]  # the other one is its parent, the first process of the pod
        return process

    def processes(self, run: int | None = None) -> list[psutil.Process]:
        prefix = f"{self.state.id}:" + (f"{run}/" if run is not None else "")
        return [process for process, marker in marked().items() if marker.startswith(prefix)]


def members_of(pod: str) -> list[psutil.Process]:
    """Return the processes of the member of a pod but the one that ships, the oldest first."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if MEMBERS & set(process.info["cmdline"] or []) and process.name() != reach.NAME:
                found += [process] if process.environ().get("POD_NAME") == pod else []
    return sorted(found, key=lambda process: process.pid)


class Pods:
    """Runs of a controller: `begin` starts one, `ready` one that has printed its first line."""

    def __init__(self, controller: Controller, server: Server) -> None:
        self._controller, self._server = controller, server

    def begin(self, script: str = WAITS, **sections: Any) -> int:
        """Send a run that prints a line, waits for its gate and prints another one; return its number."""
        run = next(_numbers)
        self._controller.script(run, script)
        self._server.start(run, config=config(**sections))
        return run

    def ready(self, **sections: Any) -> int:
        """Return a run that has printed its first line."""
        run = self.begin(**sections)
        self._server.until(lambda: b"started in" in self._server.output[run, 1], f"run {run} has started")
        return run

    def waiting(self, run: int) -> str:
        """Return why a run waits on its node, from the last heartbeat."""
        held = self._server.heartbeats[-1].held if self._server.heartbeats else []
        return next((each.waiting for each in held if each.run == run), "")

    def until_waiting(self, run: int, text: str, within_s: float = 60.0) -> str:
        """Wait for a reason, and return it."""
        self._server.until(lambda: text in self.waiting(run), f"run {run} waits: {text}", within_s)
        return self.waiting(run)

    def until_gone(self, run: int) -> None:
        """Wait until no process and no living pod of a run is left."""
        wait_for(lambda: not self._controller.processes(run), "no process is left")

        def living() -> bool:
            found = self._controller.pod(run)
            return found is not None and found["status"]["phase"] in ("Pending", "Running")

        wait_for(lambda: not living(), "no living pod is left")


def config(**sections: Any) -> dict[str, Any]:
    """Return a small configuration whose two ranks fit on one node."""
    launcher = {"timeout_s": 600, "grace_s": 5} | sections.pop("launcher", {})
    return {**SMALL, "launcher": launcher, **sections}


@pytest.fixture
def server(redis_url: str) -> Iterator[Server]:
    """A server that stores and acknowledges."""
    server = AttentiveServer(redis_url)
    yield server
    server.close()


@pytest.fixture
def controller(plane: Plane, namespace: str, tmp_path: Path, redis_url: str) -> Iterator[Controller]:
    """A controller that acts; nothing of its pods may be left at the end."""
    machine = Controller(tmp_path, redis_url, plane, namespace)
    machine.start_daemon()
    yield machine
    print(machine.log.read_text()[-8000:])  # shown when the test fails
    plane.wait_until_served()
    plane.clear(namespace)
    left = machine.close()
    assert not left, f"left running: {left}"


@pytest.fixture
def pods(controller: Controller, server: Server) -> Pods:
    """Runs of the controller."""
    return Pods(controller, server)
