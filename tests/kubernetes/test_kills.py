"""Whatever is killed, evicted or refused: each run ends once, in the words of Kubernetes, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.node.kubernetes.api import Api
from runners.node.kubernetes.lease import Lease
from tests.kubernetes.conftest import pod
from tests.kubernetes.controllers import Controller, Pods
from tests.kubernetes.plane.cluster import Plane
from tests.patience import wait_for
from tests.runners.conftest import ROOT, Server
from tests.slurm.conftest import AttentiveServer, start_own_redis

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Redis that no other test empties."""
    process, url = start_own_redis(tmp_path_factory.mktemp("redis-kubernetes"))
    yield url
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def running_controller(
    running_plane: Plane, own_redis: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Controller]:
    """A controller; nothing of its pods may be left at the end."""
    directory = tmp_path_factory.mktemp("controller")
    controller = Controller(directory, own_redis, running_plane, running_plane.namespace("kills"))
    controller.start_daemon()
    yield controller
    running_plane.clear("kills")
    left = controller.close()
    assert not left, f"left running: {left}"


@pytest.fixture
def controller(plane: Plane, running_controller: Controller) -> Iterator[Controller]:
    """The controller, with a daemon even if the last test has left none."""
    if running_controller.daemons[-1].poll() is not None:
        running_controller.start_daemon()
    yield running_controller
    print(running_controller.log.read_text()[-8000:])  # shown when the test fails


@pytest.fixture(scope="module")
def server(own_redis: str) -> Iterator[Server]:
    """A server that stores and acknowledges."""
    server = AttentiveServer(own_redis)
    yield server
    server.close()


@pytest.fixture
def pods(controller: Controller, server: Server) -> Pods:
    """Runs of the controller."""
    return Pods(controller, server)


def place(controller: Controller, run: int) -> str:
    """Return the node of a run's pod."""
    pod = controller.pod(run)
    assert pod
    return str(pod["spec"]["nodeName"])


def starts(server: Server, run: int) -> int:
    """Return how often a run has begun."""
    return sum(line.startswith(b"started") for line in server.lines(run))


def finished(controller: Controller, server: Server, run: int) -> None:
    """Let a run end, and check that it has begun once and ended once."""
    controller.open(run)
    assert server.end_of(run).state == "finished"
    assert starts(server, run) == 1
    assert len([report for report in server.reports[run, 1] if report.is_final]) == 1


@pytest.mark.kubernetes_short
def test_a_run_that_fits_nowhere_waits_in_the_words_of_the_scheduler(server: Server, pods: Pods) -> None:
    run = pods.begin(kubernetes={"resources": {"nvidia.com/gpu": "16"}})
    pods.until_waiting(run, "Insufficient nvidia.com/gpu")
    server.cancel(run)
    assert server.end_of(run).state == "cancelled"
    pods.until_gone(run)


@pytest.mark.kubernetes_short
@pytest.mark.parametrize("moment", ["at once", "pulling", "as a pod", "running"])
def test_a_run_is_cancelled_at_each_moment(controller: Controller, server: Server, pods: Pods, moment: str) -> None:
    run = pods.begin(kubernetes={"image": "registry.test/missing:1"} if moment == "pulling" else {})
    if moment == "pulling":
        pods.until_waiting(run, "registry.test/missing:1")
    elif moment == "as a pod":
        server.until(lambda: controller.pod(run), "there is a pod")
    elif moment == "running":
        server.until(lambda: starts(server, run), "the run has started")
    server.cancel(run)
    end = server.end_of(run)
    assert (end.state, end.reason) == ("cancelled", "cancelled by ada")
    pods.until_gone(run)


@pytest.mark.kubernetes_short
def test_an_evicted_pod_is_preempted(plane: Plane, controller: Controller, server: Server, pods: Pods) -> None:
    run = pods.ready()
    plane.end_pod(controller.namespace, controller.pod_name(run), "Evicted")
    end = server.end_of(run)
    assert end.state == "preempted"
    assert "low on resource: memory" in end.reason
    pods.until_gone(run)


def test_a_pod_of_higher_priority_preempts_a_run(
    plane: Plane, controller: Controller, server: Server, pods: Pods
) -> None:
    scale = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 9}
    plane.api.apply(scale)
    runs = [pods.ready(kubernetes={"resources": {"nvidia.com/gpu": "8"}}) for _ in range(3)]
    large = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
    plane.api.apply(pod("urgent", "sleep", "600", container=large, priorityClassName="urgent"), controller.namespace)

    def ended() -> list[int]:
        return [run for run in runs if server.reports[run, 1][-1].is_final]

    server.until(ended, "one is preempted")
    [victim] = ended()
    assert server.end_of(victim).state == "preempted"
    plane.api.delete(f"/api/v1/namespaces/{controller.namespace}/pods/urgent")
    for run in runs:
        if run != victim:
            finished(controller, server, run)


def test_a_pod_that_is_out_of_memory_ends_its_run_as_such(
    plane: Plane, controller: Controller, server: Server, pods: Pods
) -> None:
    run = pods.ready()
    plane.end_pod(controller.namespace, controller.pod_name(run), "OOMKilled")
    assert server.end_of(run).state == "oom"
    pods.until_gone(run)


@pytest.mark.kubernetes_short
def test_a_killed_kubelet_does_not_end_a_run(plane: Plane, controller: Controller, server: Server, pods: Pods) -> None:
    run = pods.ready()
    node = place(controller, run)
    plane.kill(node)
    controller.open(run)
    server.until(lambda: b"done" in server.output[run, 1], "the run goes on")
    plane.start_node(node)
    finished(controller, server, run)
    pods.until_gone(run)


def test_the_run_of_a_lost_node_is_lost(plane: Plane, controller: Controller, server: Server, pods: Pods) -> None:
    run = pods.ready()
    node = place(controller, run)
    plane.kill_node(node)
    end = server.end_of(run)
    assert end.state == "lost"
    assert node in end.reason
    plane.start_node(node)
    pods.until_gone(run)


@pytest.mark.kubernetes_short
def test_a_killed_controller_finds_its_pods_again(controller: Controller, server: Server, pods: Pods) -> None:
    stays, ends = pods.ready(), pods.ready()
    controller.kill_daemon()
    controller.open(ends)
    waits = pods.begin()
    controller.start_daemon()
    for run in (ends, stays, waits):
        finished(controller, server, run)


@pytest.mark.kubernetes_short
def test_nothing_is_lost_while_the_api_server_is_away(
    plane: Plane, controller: Controller, server: Server, pods: Pods
) -> None:
    ends, stays = pods.ready(), pods.ready()
    plane.kill("apiserver")
    late = pods.begin()
    server.until(lambda: pods.waiting(late), "the run waits for the server")
    controller.open(ends)
    server.until(lambda: b"done" in server.output[ends, 1], "the run goes on")
    plane.start_service("apiserver")
    plane.wait_until_served()
    for run in (ends, stays, late):
        finished(controller, server, run)


def test_a_second_controller_of_a_state_directory_does_not_start_on_one_machine(
    controller: Controller, server: Server, pods: Pods, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.runners.node_process", *controller.arguments()]
    done = subprocess.run(command, cwd=ROOT, env=controller.environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert f"already uses {controller.state_dir}" in done.stderr
    finished(controller, server, pods.begin())


def test_of_two_controllers_on_two_machines_one_acts_and_the_other_takes_over(
    plane: Plane, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    api = Api.connect(controller.namespace, None)
    first, second = (Lease(api, "shared", holder, duration_s=2) for holder in ("a_1", "b_2"))
    assert first.holds()
    assert not second.holds()
    assert second.other == "a"
    began = time.monotonic()
    while time.monotonic() < began + 4:
        assert first.holds()
        assert not second.holds(), "the first one renews it"
        time.sleep(0.2)
    wait_for(second.holds, "the first one is gone")
    time.sleep(0.6)
    assert not first.holds()
    assert Lease(api, "shared", "b_2", duration_s=2).holds(), "started again on its machine, it acts at once"


BAD = [
    ({"image": "registry.test/missing:1"}, ("kubernetes.image", "registry.test/missing:1")),
    ({"image": "registry.test/denied:1"}, ("kubernetes.image", "registry.test/denied:1")),
    ({"service_account": "nobody"}, ("kubernetes.service_account", "nobody")),
    ({"priority_class": "nothing"}, ("kubernetes.priority_class", "nothing")),
    ({"claims": {"absent": "/data"}}, ("kubernetes.claims", "absent")),
    ({"secrets": {"absent": "/secret"}}, ("kubernetes.secrets", "absent")),
    ({"resources": {"cpu": "1", "memory": "1Ti"}}, ("Insufficient memory",)),
]


@pytest.mark.parametrize(("kubernetes", "words"), BAD)
def test_what_cannot_be_is_a_sentence_with_field_and_value_within_ten_seconds(
    server: Server, pods: Pods, kubernetes: dict[str, object], words: tuple[str, ...]
) -> None:
    run = pods.begin(kubernetes=kubernetes)

    def text() -> str:
        reasons = [report.reason for report in server.reports[run, 1] if report.is_final]
        return (reasons or [pods.waiting(run)])[0]

    server.until(lambda: all(word in text() for word in words), f"{words} in a sentence", within_s=10)
    server.cancel(run)
    server.end_of(run)
    pods.until_gone(run)


def test_a_quota_that_is_used_up_is_a_reason_to_wait(
    plane: Plane, controller: Controller, server: Server, pods: Pods
) -> None:
    path = f"/api/v1/namespaces/{controller.namespace}/resourcequotas"
    spec = {"hard": {"requests.ephemeral-storage": "3Gi"}}
    plane.api.create(path, {"metadata": {"name": "small"}, "spec": spec})
    try:
        first = pods.ready(kubernetes={"resources": {"ephemeral-storage": "2Gi"}})
        third = pods.begin(kubernetes={"resources": {"ephemeral-storage": "4Gi"}})
        end = server.end_of(third)
        assert end.state == "failed"
        assert "kubernetes.resources: a pod asks for more than quota small of namespace kills gives" in end.reason
        second = pods.begin(kubernetes={"resources": {"ephemeral-storage": "2Gi"}})
        pods.until_waiting(
            second, "quota small of namespace kills is used up: a pod needs requests.ephemeral-storage 2Gi"
        )
        for run in (first, second):
            finished(controller, server, run)
    finally:
        plane.api.delete(f"{path}/small")
