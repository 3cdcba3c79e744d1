"""Pods that share no volume with their controller: they post their spools to the real server over HTTP."""

from __future__ import annotations

import json
import signal
import time

import psutil
import pytest
from django.conf import settings

from parlab.fleet import services
from parlab.series import log, store
from runners.wire.protocol import RunState
from tests.chains.world import World
from tests.kubernetes.controllers import Controller, members_of
from tests.kubernetes.plane.cluster import Plane
from tests.kubernetes.without_volume.conftest import Launch, ended, gone, ticked, ticks
from tests.kubernetes.without_volume.gate import Gate
from tests.patience import wait_for
from tests.runners.test_nodes import over_three

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.kubernetes]

AWAY_S = 20.0


@pytest.mark.parametrize("objects", ["jobset"], indirect=True)
def test_a_gang_trains_in_the_pods_of_a_jobset(
    world: World, controller: Controller, plane: Plane, namespace: str, launch: Launch
) -> None:
    sections = {"train": {"global_batch_size": 4, "micro_batch_size": 1, "iterations": 20, "warmup_steps": 1}}
    cluster = {"nodes": 3, "device": "cpu", "pool": "hpc"}
    run = launch(over_three(cluster=cluster, kubernetes={"cpu": 5}, **sections))
    jobsets = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets"
    world.until(lambda: len(controller.pods()) == 3, "it has pods")
    (jobset,) = plane.api.items(jobsets)
    (secret,) = [
        each for each in plane.api.items(f"/api/v1/namespaces/{namespace}/secrets") if each["type"] == "Opaque"
    ]
    assert secret["metadata"]["ownerReferences"][0]["uid"] == jobset["metadata"]["uid"], "it goes with the JobSet"
    ended(world, run, RunState.FINISHED, 300)
    attempt = run.current_attempt()
    assert store.read(attempt.pk, "loss", rank=2).steps.tolist() == list(range(1, 21))
    assert {member.state for member in attempt.members.all()} == {"finished"}
    gone(world, controller, run)


@pytest.mark.parametrize("objects", ["jobset"], indirect=True)
def test_a_cancel_ends_the_pods_of_a_jobset(world: World, controller: Controller, launch: Launch) -> None:
    run = launch(ticks(5000, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    services.cancel(run=run)
    assert ended(world, run, RunState.CANCELLED) == "cancelled by a person"
    gone(world, controller, run)


def test_a_gang_trains_while_the_server_is_away_for_a_while(
    world: World, controller: Controller, plane: Plane, gate: Gate, launch: Launch
) -> None:
    steps = 1500
    sections = {"train": {"global_batch_size": 4, "micro_batch_size": 1, "iterations": steps, "warmup_steps": 1}}
    cluster = {"nodes": 3, "device": "cpu", "pool": "hpc"}
    run = launch(over_three(cluster=cluster, kubernetes={"cpu": 5}, **sections))
    world.until(lambda: world.steps(run) > 20, "it trains")
    pods = [controller.pod(run.pk, 1, node_rank) for node_rank in range(3)]
    assert {pod["spec"]["nodeName"] for pod in pods if pod} == {"n1", "n2", "n3"}
    assert not any("persistentVolumeClaim" in volume for pod in pods if pod for volume in pod["spec"]["volumes"])
    assert settings.NODE_KEY.decode() not in json.dumps(pods), "no pod has the key of the controller"
    gate.shut()
    shut_at = time.monotonic()
    world.until(lambda: time.monotonic() - shut_at > 3, "what the server had taken is stored")
    before = world.steps(run)
    world.until(lambda: time.monotonic() - shut_at > AWAY_S, "the server is away", AWAY_S + 30)
    assert world.steps(run) == before
    gate.open()
    ended(world, run, RunState.FINISHED, 300)
    attempt = run.current_attempt()
    assert store.read(attempt.pk, "loss", rank=2).steps.tolist() == list(range(1, steps + 1))
    shown = b"".join(log.read_log(attempt.pk))
    assert shown.count(b": Scheduled: Successfully assigned") == 3, "events of all pods are lines of the log"
    assert {member.state for member in attempt.members.all()} == {"finished"}
    assert attempt.environment["kubernetes"]["shipped_by"] == "pod, over HTTP"
    gone(world, controller, run)


def test_a_cancel_ends_a_pod_also_while_the_controller_was_away(
    world: World, controller: Controller, launch: Launch
) -> None:
    run = launch(ticks(5000, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    controller.kill_daemon()
    services.cancel(run=run)
    controller.start_daemon()
    assert ended(world, run, RunState.CANCELLED) == "cancelled by a person"
    gone(world, controller, run)


def test_a_killed_supervisor_is_lost_with_all_that_it_has_said(
    world: World, controller: Controller, launch: Launch
) -> None:
    run = launch(ticks(5000, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    controller.supervisor(run.pk).send_signal(signal.SIGKILL)
    assert "its supervisor was killed" in ended(world, run, RunState.LOST)
    gone(world, controller, run)


@pytest.mark.parametrize("objects", ["pods", "jobset"], indirect=True)
def test_what_a_killed_first_process_had_not_posted_is_posted_when_its_container_starts_again(
    world: World, controller: Controller, gate: Gate, launch: Launch
) -> None:
    run = launch(ticks(5000, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    before = len(ticked(run))
    gate.shut()
    shut_at = time.monotonic()
    world.until(lambda: time.monotonic() - shut_at > 4, "it ticks on")
    (pod,) = controller.pods()
    first: psutil.Process = wait_for(lambda: members_of(pod["metadata"]["name"]), "its pod")[0]
    first.send_signal(signal.SIGKILL)
    killed_at = time.monotonic()
    world.until(lambda: time.monotonic() - killed_at > 3, "its container has started again")
    gate.open()
    assert "with exit code 137: its supervisor was killed" in ended(world, run, RunState.LOST)
    assert len(ticked(run)) > before + 25, "what it printed while the server was away"
    gone(world, controller, run)


def test_a_container_without_memory_is_oom_with_all_that_it_has_printed(
    world: World, controller: Controller, plane: Plane, gate: Gate, launch: Launch
) -> None:
    run = launch(ticks(5000, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    before = len(ticked(run))
    gate.shut()
    shut_at = time.monotonic()
    world.until(lambda: time.monotonic() - shut_at > 4, "it ticks on")
    plane.end_pod(controller.namespace, controller.pod_name(run.pk), "OOMKilled")
    world.until(lambda: time.monotonic() - shut_at > 7, "its container has started again")
    gate.open()
    assert "it ran out of the memory of its pod; raise kubernetes.memory_mib" in ended(world, run, RunState.OOM)
    assert len(ticked(run)) > before + 25, "what it printed while the server was away"
    gone(world, controller, run)


def test_a_container_that_does_not_start_fails_the_run(world: World, controller: Controller, launch: Launch) -> None:
    broken = {"spec": {"containers": [{"name": "parlab", "command": ["python", "-c", "raise SystemExit(3)"]}]}}
    run = launch(ticks(10, 0.1, kubernetes={"patch": broken}))
    reason = ended(world, run, RunState.FAILED)
    assert "ended as Error with exit code 3 before its supervisor started; kubectl logs has its output" in reason
    gone(world, controller, run)


def test_an_eviction_while_the_server_is_away_is_told_with_all_output_once_it_is_back(
    world: World, controller: Controller, plane: Plane, gate: Gate, launch: Launch
) -> None:
    run = launch(ticks(5000, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    before = len(ticked(run))
    gate.shut()
    shut_at = time.monotonic()
    world.until(lambda: time.monotonic() - shut_at > 3, "the server is away")
    plane.end_pod(controller.namespace, controller.pod_name(run.pk), "Evicted")
    world.until(lambda: time.monotonic() - shut_at > 8, "the pod waits for the server")
    gate.open()
    assert "ended as Evicted: its node evicted it" in ended(world, run, RunState.PREEMPTED)
    assert len(ticked(run)) > before + 25, "what it printed while the server was away"
    gone(world, controller, run)


def test_a_run_that_ends_while_the_server_is_away_is_finished_once_it_is_back(
    world: World, controller: Controller, gate: Gate, launch: Launch
) -> None:
    run = launch(ticks(40, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    gate.shut()
    controller.kill_daemon()
    shut_at = time.monotonic()
    world.until(lambda: time.monotonic() - shut_at > 8, "it ends meanwhile")
    gate.open()
    controller.start_daemon()
    ended(world, run, RunState.FINISHED)
    assert len(ticked(run)) == 40
    gone(world, controller, run)


def test_what_the_server_does_not_take_in_time_is_said(
    world: World, controller: Controller, gate: Gate, launch: Launch
) -> None:
    controller.kill_daemon()
    controller.start_daemon(PARLAB_KUBERNETES_REST_S="4")
    run = launch(ticks(40, 0.1))
    world.until(lambda: len(ticked(run)) > 3, "it ticks")
    gate.shut()
    reason = ended(world, run, RunState.FINISHED)
    assert (
        "bytes of its spool within 4 s after its end (PARLAB_KUBERNETES_REST_S): they are gone with the pod" in reason
    )
    assert 3 < len(ticked(run)) < 40
    gate.open()
    gone(world, controller, run)


def test_checkpoints_need_a_claim_of_the_user(world: World, launch: Launch) -> None:
    run = launch(ticks(10, 0.1, launcher={"kind": "plain", "chain": True}))
    reason = ended(world, run, RunState.FAILED)
    assert reason.startswith("checkpoint.directory: directory of the pool is gone with the pod")
