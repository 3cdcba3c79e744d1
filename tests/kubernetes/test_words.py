"""Kubernetes' words for waiting and ended pods, and for refusals, as texts and states of runs."""

from __future__ import annotations

from typing import Any

import pytest

from runners.config import RunConfig
from runners.node.kubernetes.pods import Event, Pod, event_of, pod_of
from runners.node.kubernetes.pool import Pool, Volume
from runners.node.kubernetes.problems import problems, quota_text, refusal
from runners.node.kubernetes.words import Past, ending, lost_with_node, waiting
from tests.conftest import SMALL

LABELS = {"parlab/controller": "s", "parlab/run": "12", "parlab/attempt": "2", "parlab/node-rank": "1"}
UNREADY = [{"type": "Ready", "status": "False"}]


def pod(phase: str = "Pending", node: str = "", meta: dict[str, Any] | None = None, **status: Any) -> Pod:
    """Return the pod of node 1 of an attempt."""
    metadata = {"name": "parlab-s-12-2-1", "uid": "u", "labels": LABELS, **(meta or {})}
    found = pod_of(
        {
            "metadata": metadata,
            "spec": {"nodeName": node, "containers": [{"image": "r/i:1"}]},
            "status": {"phase": phase, **status},
        }
    )
    assert found is not None
    return found


def in_state(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "parlab", "state": state}]}


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


def test_a_pod_names_its_member() -> None:
    found = pod()
    assert (found.key, found.node_rank, found.name) == ((12, 2), 1, "parlab-s-12-2-1")
    of_a_job = {name: value for name, value in LABELS.items() if name != "parlab/node-rank"}
    annotations = {"batch.kubernetes.io/job-completion-index": "3"}
    data = {"metadata": {"name": "x", "uid": "u", "labels": of_a_job, "annotations": annotations}}
    assert (of_job := pod_of(data)) is not None
    assert of_job.node_rank == 3
    assert pod_of({"metadata": {"name": "another", "uid": "u"}}) is None


UNSCHEDULED = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
WAITS = [
    (pod(), "parlab-s-12-2-1 is Pending: the scheduler has not looked at it yet", False),
    (pod(**condition("PodScheduled", "False", "Unschedulable", UNSCHEDULED)), UNSCHEDULED, False),
    (pod(**condition("PodScheduled", "False", "SchedulingGated")), "is Pending: SchedulingGated", False),
    (pod(node="n1"), "starts on node n1: the kubelet has not answered yet", False),
    (pod(node="n1", **in_state(waiting={"reason": "ContainerCreating"})), "on node n1: ContainerCreating", False),
    (
        pod(node="n1", **in_state(waiting={"reason": "ErrImagePull", "message": "manifest unknown"})),
        "kubernetes.image r/i:1 cannot be pulled on node n1: ErrImagePull: manifest unknown; correct the name, or",
        True,
    ),
    (
        pod(node="n1", **in_state(waiting={"reason": "CreateContainerConfigError", "message": 'secret "x" not found'})),
        "kubernetes.secrets x: create it, or name an existing one: node n1 cannot create the container of pod",
        True,
    ),
]


@pytest.mark.parametrize(("waits", "text", "is_stuck"), WAITS)
def test_a_waiting_pod_says_why(waits: Pod, text: str, is_stuck: bool) -> None:
    wait = waiting(waits)
    assert wait is not None
    assert text in wait.text
    assert wait.is_stuck is is_stuck


def test_a_pod_whose_volumes_are_missing_names_the_field() -> None:
    text = '0/3 nodes are available: 3 persistentvolumeclaim "data" not found.'
    wait = waiting(pod(**condition("PodScheduled", "False", "Unschedulable", text)))
    assert wait is not None
    assert wait.is_stuck
    assert wait.text.startswith("kubernetes.claims data: create it, or name an existing one: Kubernetes: pod parlab-s")
    creating = pod(node="n1", **in_state(waiting={"reason": "ContainerCreating"}))
    wait = waiting(creating, [event("FailedMount", 'MountVolume.SetUp failed: secret "hub" not found')])
    assert wait is not None
    assert wait.text.startswith("kubernetes.secrets hub: create it, or name an existing one: pod parlab-s-12-2-1 waits")


def test_a_running_pod_waits_for_nothing() -> None:
    assert waiting(pod("Running", "n1", **in_state(running={}))) is None


def test_a_container_that_prepares_is_not_that_of_the_run() -> None:
    preparing = {"initContainerStatuses": [{"name": "runtime", "state": {"running": {}}}]}
    status = preparing | in_state(waiting={"reason": "PodInitializing"})
    assert not pod("Pending", "n1", **status).is_running
    wait = waiting(pod("Pending", "n1", **status))
    assert wait is not None
    assert "starts on node n1: PodInitializing" in wait.text


def test_an_invalid_name_of_an_image_is_hopeless() -> None:
    wait = waiting(pod(node="n1", **in_state(waiting={"reason": "InvalidImageName"})))
    assert wait is not None
    assert wait.is_hopeless


def ended(code: int, reason: str = "Error", **more: Any) -> Pod:
    return pod("Failed", "n2", **in_state(terminated={"exitCode": code, "reason": reason}), **more)


DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
ENDS = [
    (ended(137, "OOMKilled"), True, False, "oom", "ended as OOMKilled: it ran out of the memory of its pod; raise"),
    (ended(137), True, False, "lost", "ended as Error with exit code 137: its supervisor was killed"),
    (ended(127), False, False, "failed", "exit code 127 before its supervisor started; kubectl logs"),
    (ended(90), False, False, "failed", "it does not see /state/runs/12-2-1; check --volume of the controller"),
    (ended(91), True, False, "lost", "it was started a second time"),
    (
        pod("Failed", "n2", reason="Evicted", message="The node was low on resource: memory."),
        True,
        False,
        "preempted",
        "ended as Evicted: its node evicted it: The node was low on resource: memory.",
    ),
    (pod("Failed", "n2", reason="DeadlineExceeded"), True, True, "time-limit", "its activeDeadlineSeconds are over"),
    (
        ended(0, "Completed", **condition("DisruptionTarget", "True", "EvictionByEvictionAPI")),
        True,
        True,
        "preempted",
        "it was evicted, for example because its node is drained",
    ),
    (ended(0, "Completed", meta=DELETED), True, True, "cancelled", "was deleted in Kubernetes, outside of parlab"),
    (ended(137, "OOMKilled", meta=DELETED), True, True, "oom", "it ran out of the memory of its pod"),
    (ended(137, meta=DELETED), True, False, "lost", "its supervisor was killed"),
]


@pytest.mark.parametrize(("last", "has_started", "was_stopped", "state", "text"), ENDS)
def test_an_ended_pod_ends_its_run_in_kubernetes_words(
    last: Pod, has_started: bool, was_stopped: bool, state: str, text: str
) -> None:
    outcome = ending(Past(last.name, last), "/state/runs/12-2-1", has_started=has_started, was_stopped=was_stopped)
    assert outcome.state == state
    assert outcome.text.startswith("pod parlab-s-12-2-1 on n2")
    assert text in outcome.text


def event(reason: str, message: str, at: str = "2026-01-01T00:00:00Z") -> Event:
    about = {"kind": "Pod", "name": "parlab-s-12-2-1"}
    return event_of({"involvedObject": about, "reason": reason, "message": message, "lastTimestamp": at})


RUNNING = pod("Running", "n2", **in_state(running={}))
GONE = [
    (Past("p", RUNNING, [event("NodeNotReady", "Node is not ready")]), True, "cancelled", "was deleted in Kubernetes"),
    (Past("p", None), False, "lost", "Kubernetes does not know pod p any more, and its supervisor left no report"),
    (Past("p", RUNNING), True, "cancelled", "pod p on n2 was deleted in Kubernetes, outside of parlab"),
    (Past("p", RUNNING, is_node_closed=True), True, "preempted", "its node takes no more pods, as when it is drained"),
    (
        Past("p", RUNNING, [event("Started", ""), event("Preempted", "Preempted by runs/other on node n2")]),
        True,
        "preempted",
        "Preempted: a pod of higher priority took its place: Preempted by runs/other on node n2",
    ),
    (
        Past("p", RUNNING, [event("NodeNotReady", "Node is not ready"), event("TaintManagerEviction", "x", "2026-02")]),
        True,
        "preempted",
        "its node got a taint that it does not tolerate",
    ),
    (
        Past("p", pod("Running", "n2", **in_state(running={}), conditions=UNREADY)),
        False,
        "lost",
        "was removed: its node does not answer",
    ),
]


@pytest.mark.parametrize(("past", "was_stopped", "state", "text"), GONE)
def test_a_pod_that_is_gone_ends_its_run_in_kubernetes_words(
    past: Past, was_stopped: bool, state: str, text: str
) -> None:
    outcome = ending(past, "/d", has_started=True, was_stopped=was_stopped)
    assert outcome.state == state
    assert text in outcome.text


def test_a_node_that_is_not_ready_is_seen_by_its_pods() -> None:
    away = pod("Running", "n2", **in_state(running={}), conditions=UNREADY)
    assert away.is_node_away
    assert not RUNNING.is_node_away
    assert not pod("Pending", "n2", conditions=UNREADY).is_node_away
    outcome = lost_with_node(away, 41.4)
    assert (outcome.state, outcome.text) == (
        "lost",
        "pod parlab-s-12-2-1 on n2: the node is not ready, and nothing came from it for 41 s;"
        " see kubectl describe node n2",
    )


def test_an_event_is_a_line_of_the_log() -> None:
    assert str(event("FailedScheduling", "0/3 nodes\nare available")) == (
        "Pod parlab-s-12-2-1: FailedScheduling: 0/3 nodes are available"
    )


def test_a_quota_that_is_used_up_is_waited_for_and_one_that_is_too_small_is_not() -> None:
    message = (
        'pods "x" is forbidden: exceeded quota: team, requested: pods=1,requests.cpu=2, used: pods=2,requests.cpu=3,'
        " limited: pods=2,requests.cpu={most}"
    )
    text, is_hopeless = quota_text(message.format(most="4"), "runs")
    assert text == (
        "quota team of namespace runs is used up: a pod needs pods 1 of at most 2, requests.cpu 2 of at most 4,"
        " used: pods=2,requests.cpu=3"
    )
    assert not is_hopeless
    text, is_hopeless = quota_text(message.format(most="1500m"), "runs")
    assert "a pod asks for more than quota team of namespace runs gives: requests.cpu 2 of at most 1500m;" in text
    assert is_hopeless
    for most in ("1Pi", "1E", "2e3"):
        assert not quota_text(message.format(most=most), "runs")[1], most


POOL = Pool("runs", Volume(claim="state"), image="node:1")
WRONG: list[tuple[dict[str, Any], Pool, list[str], str, str]] = [
    ({}, POOL._replace(image=""), [], "kubernetes.image", "have no image; set kubernetes.image, or start the"),
    ({}, POOL, ["delete pods"], "cluster.pool", "may not delete pods in namespace runs; kubectl apply -f deploy/"),
    (
        {"launcher": {"container": {"runtime": "podman", "image": "a"}}},
        POOL,
        [],
        "launcher.container",
        "a pod is a container already",
    ),
    (
        {"network": {"apply": "emulate", "delay_ms": 1}},
        POOL,
        [],
        "network.apply",
        "links between pods cannot be shaped",
    ),
    (
        {"kubernetes": {"claims": {"a": "/data"}, "secrets": {"b": "/data"}}},
        POOL,
        [],
        "kubernetes.claims",
        "/data is named twice",
    ),
]


@pytest.mark.parametrize(("changes", "pool", "missing", "field", "message"), WRONG)
def test_a_run_that_the_pool_cannot_take_has_field_value_and_remedy(
    changes: dict[str, Any], pool: Pool, missing: list[str], field: str, message: str
) -> None:
    (problem,) = problems(RunConfig.model_validate(SMALL | changes), pool, missing)
    assert problem.field == field
    assert message in problem.message


def test_the_owner_of_a_pool_may_name_the_images_of_its_runs() -> None:
    config = RunConfig.model_validate(SMALL | {"kubernetes": {"image": "elsewhere/miner:1"}})
    assert not list(problems(config, POOL, []))
    (problem,) = problems(config, POOL, [], ("team/", "registry/"))
    assert (problem.field, problem.value) == ("kubernetes.image", "elsewhere/miner:1")
    assert "allows images that begin with team/, registry/" in problem.message


def test_a_refusal_names_the_field_that_it_is_about() -> None:
    config = RunConfig.model_validate(SMALL | {"kubernetes": {"priority_class": "urgent"}})
    text = refusal("no PriorityClass with name urgent was found", 403, config)
    assert text.startswith("kubernetes.priority_class urgent: Kubernetes refused the run (403): no PriorityClass")
    assert text.endswith("; correct kubernetes.priority_class")


def restarted(**state: Any) -> dict[str, Any]:
    """Return the state of a container that was killed, and started again."""
    ended = {"exitCode": 137, "reason": state.pop("reason", "Error")}
    return {"containerStatuses": [{"name": "parlab", "state": state, "lastState": {"terminated": ended}}]}


def test_a_container_that_was_started_again_ended_as_the_first_time() -> None:
    done = {"terminated": {"exitCode": 0, "reason": "Completed", "message": '{"parlab_pod": 1}'}}
    for phase, state, meta in (
        ("Succeeded", done, {}),
        ("Running", {"running": {}}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}),  # by a Job, as one has failed
        ("Running", {"waiting": {"reason": "CrashLoopBackOff"}}, {}),
    ):
        past = Past("p", pod(phase, "n1", meta, **restarted(**state)))
        words = ending(past, "/d", has_started=True, was_stopped=False)
        assert (words.state, words.text) == (
            "lost",
            "pod p on n1 ended as Error with exit code 137: its supervisor was killed",
        )
    out = Past("p", pod("Succeeded", "n1", **restarted(**done, reason="OOMKilled")))
    assert ending(out, "/d", has_started=True, was_stopped=False).state == "oom"
    assert pod("Running", "n1", **restarted(waiting={"reason": "CrashLoopBackOff"})).is_looping
