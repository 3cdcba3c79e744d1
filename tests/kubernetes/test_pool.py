"""Runs as pods of a real control plane: created, run, shipped, ended in the words of Kubernetes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kubernetes.controllers import Controller, Pods, controller, pods, server
from tests.kubernetes.plane.cluster import Plane
from tests.runners.conftest import ROOT, Server

__all__ = ["controller", "pods", "server"]

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]


def test_a_run_becomes_a_pod_and_its_output_reaches_the_server(
    controller: Controller, server: Server, pods: Pods
) -> None:
    run = pods.ready(kubernetes={"exclude": "n1,n3"})
    described = server.reports[run, 1][0].environment["kubernetes"]
    assert (described["pod"], described["namespace"]) == (controller.pod_name(run), controller.namespace)
    assert described["node"] == "n2"
    assert described["shipped_by"] == "compute node"
    assert '"kind": "Pod"' in described["script"]
    controller.open(run)
    assert server.end_of(run).state == "finished"
    lines = [line for line in server.lines(run) if not line.startswith(b"kubernetes: ")]
    assert lines[-1] == b"done"
    assert b"secret None" in lines[0]
    assert b": Started: Started container" in server.output[run, 1]
    server.until(lambda: not controller.run_dir(run).exists, "the run is deleted on the volume")
    pods.until_gone(run)


def test_a_cancel_ends_the_pod(controller: Controller, server: Server, pods: Pods) -> None:
    run = pods.ready()
    server.cancel(run)
    end = server.end_of(run)
    assert (end.state, end.reason) == ("cancelled", "cancelled by ada")
    pods.until_gone(run)


def test_a_killed_supervisor_is_lost_and_its_ranks_end(controller: Controller, server: Server, pods: Pods) -> None:
    run = pods.ready()
    controller.supervisor(run).send_signal(signal.SIGKILL)
    end = server.end_of(run)
    assert end.state == "lost"
    assert f"pod {controller.pod_name(run)} on " in end.reason
    assert "its supervisor was killed" in end.reason
    pods.until_gone(run)


def test_a_pod_that_somebody_deletes_ends_in_those_words(controller: Controller, server: Server, pods: Pods) -> None:
    run = pods.ready()
    controller.delete(run)
    end = server.end_of(run)
    assert end.state == "cancelled"
    assert end.reason.endswith("was deleted in Kubernetes, outside of parlab")
    assert len([report for report in server.reports[run, 1] if report.is_final]) == 1
    pods.until_gone(run)


def test_an_image_of_its_own_gets_parlab_and_its_python(controller: Controller, server: Server, pods: Pods) -> None:
    run = pods.ready(kubernetes={"image": "team/plain:7"})
    described = server.reports[run, 1][0].environment["kubernetes"]
    assert described["image"] == "team/plain:7"
    pod = controller.pod(run)
    assert pod is not None
    (copied,) = pod["status"]["initContainerStatuses"]
    assert copied["state"]["terminated"]["exitCode"] == 0
    # Its Python is the copy, which has no torch, in place of this machine's environment.
    supervisor = controller.supervisor(run)
    assert supervisor.cmdline()[0] == sys.executable
    library = Path(f"/proc/{supervisor.pid}/root{sys.prefix}/lib/python3.{sys.version_info.minor}")
    assert {"parlab-packages", "site-packages"} <= {path.name for path in library.iterdir()}
    assert not (library / "site-packages" / "torch").exists()
    controller.open(run)
    assert server.end_of(run).state == "finished"
    pods.until_gone(run)


def test_a_controller_without_rights_says_so_within_ten_seconds(
    plane: Plane, namespace: str, tmp_path: Path, redis_url: str, server: Server
) -> None:
    machine = Controller(tmp_path, redis_url, plane, namespace, plane.config_of(namespace, "default"))
    machine.start_daemon()
    began = time.monotonic()
    try:
        run = Pods(machine, server).begin()
        end = server.end_of(run)
    finally:
        print(machine.log.read_text()[-4000:])  # shown when the test fails
        assert not machine.close()
    assert end.state == "failed"
    assert end.reason.startswith("cluster.pool default: Kubernetes refuses: leases.coordination.k8s.io")
    assert f'User "system:serviceaccount:{namespace}:default" cannot get resource "leases"' in end.reason
    assert end.reason.endswith("kubectl apply -f deploy/kubernetes/pool-rbac.yaml grants what is needed")
    assert time.monotonic() - began < 10


def test_stop_all_deletes_the_pods_of_a_controller_that_is_gone(
    controller: Controller, server: Server, pods: Pods
) -> None:
    run = pods.ready()
    controller.kill_daemon()
    options = ("--kubernetes", "--namespace", controller.namespace, "--state-dir", str(controller.state_dir))
    command = [sys.executable, "-m", "runners.node.daemon", "stop-all", *options]
    done = subprocess.run(command, cwd=ROOT, env=controller.environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "deleted 1 pods; the next daemon reports their ends" in done.stderr
    pods.until_gone(run)
    controller.start_daemon()
    end = server.end_of(run)
    assert (end.state, end.reason) == ("cancelled", "the node's daemon was stopped")
