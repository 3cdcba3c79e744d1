"""The plane itself: what other tests rely on is what real clusters do."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kubernetes.conftest import pod
from tests.kubernetes.plane.api import Api, ApiError, Object
from tests.kubernetes.plane.cluster import Plane
from tests.patience import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]

Phase = Callable[[str], str]
GANG = """
import datetime, os, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("pod", os.environ["POD"], "sum", int(total.item()), flush=True)
"""


def waiting(plane: Plane, namespace: str, name: str) -> Object:
    """Return why the container of a pod waits; empty if it does not."""
    statuses = plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"].get("containerStatuses", [])
    found: Object = statuses[0]["state"].get("waiting", {}) if statuses else {}
    return found


def processes(word: str) -> list[psutil.Process]:
    """Return the processes with a word in their command."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(word == part for part in process.info["cmdline"] or []):
            found.append(process)
    return found


def test_a_gang_of_three_pods_meets_by_the_name_of_a_headless_service(
    plane: Plane, namespace: str, phase: Phase
) -> None:
    selector = {
        "clusterIP": "None",
        "selector": {"gang": "g"},
        "publishNotReadyAddresses": True,
        "ports": [{"port": 1}],
    }
    plane.api.create(f"/api/v1/namespaces/{namespace}/services", {"metadata": {"name": "gang"}, "spec": selector})
    for rank in range(3):
        environment = {"RANK": rank, "WORLD_SIZE": 3, "MASTER_ADDR": "gang-0.gang", "MASTER_PORT": 29511}
        values: list[Object] = [{"name": name, "value": str(value)} for name, value in environment.items()]
        values.append({"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
        spread = {"labelSelector": {"matchLabels": {"gang": "g"}}, "topologyKey": "kubernetes.io/hostname"}
        apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [spread]}}
        named: dict[str, Any] = {"hostname": f"gang-{rank}", "subdomain": "gang", "affinity": apart}
        body = pod(
            f"gang-{rank}", "python", "-c", GANG, metadata={"labels": {"gang": "g"}}, container={"env": values}, **named
        )
        plane.api.apply(body, namespace)
    wait_for(lambda: all(phase(f"gang-{rank}") == "Succeeded" for rank in range(3)), "the gang ends")
    assert [plane.output(namespace, f"gang-{rank}").count("sum 6") for rank in range(3)] == [1, 1, 1]
    assert {each["spec"]["nodeName"] for each in plane.pods(namespace)} == {"n1", "n2", "n3"}


def test_a_pod_that_fits_nowhere_waits_in_the_words_of_the_scheduler(plane: Plane, namespace: str) -> None:
    resources = {"resources": {"limits": {"nvidia.com/gpu": "16"}}}
    plane.api.apply(pod("large", "true", container=resources), namespace)
    path = f"/api/v1/namespaces/{namespace}/pods/large"

    def message() -> str:
        conditions = plane.api.get(path)["status"].get("conditions", [])
        return next((each.get("message", "") for each in conditions if each["type"] == "PodScheduled"), "")

    wait_for(message, "the scheduler has a reason")
    assert "3 Insufficient nvidia.com/gpu" in message()


def test_an_init_container_fills_a_volume_and_fields_secrets_and_claims_are_there(
    plane: Plane, namespace: str, phase: Phase
) -> None:
    shared = plane.claim(namespace, "data")
    secret = {"metadata": {"name": "key"}, "stringData": {"token": "of the secret"}}
    plane.api.create(f"/api/v1/namespaces/{namespace}/secrets", secret)
    volumes = [
        {"name": "tools", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "key", "secret": {"secretName": "key", "defaultMode": 0o400}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
    ]
    mounts = [
        {"name": "tools", "mountPath": "/opt/tools"},
        {"name": "data", "mountPath": "/data"},
        {"name": "key", "mountPath": "/run/key", "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    variables = [
        {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "token"}}},
        {"name": "BOTH", "value": "$(TEAM)-$(NODE)"},
    ]
    script = (
        "/opt/tools/say; cat /run/key/token; echo $BOTH $KEY $$$$ `hostname`; df /dev/shm | tail -1; touch /data/it"
    )
    copy = "printf '#!/bin/sh\\necho copied\\n' > /opt/tools/say; chmod +x /opt/tools/say"
    init = {"name": "copy", "image": "tools", "command": ["sh", "-c", copy], "volumeMounts": mounts[:1]}
    body = pod(
        "filled", "sh", "-c", script, metadata={"labels": {"team": "red"}}, initContainers=[init], volumes=volumes,
        container={"env": variables, "volumeMounts": mounts},
    )  # fmt: skip
    plane.api.apply(body, namespace)
    wait_for(lambda: phase("filled") == "Succeeded", "the pod ends")
    output = plane.output(namespace, "filled")
    node = plane.pods(namespace)[0]["spec"]["nodeName"]
    assert output.startswith(f"copied\nof the secretred-{node} of the secret 1 filled\n")
    assert "65536" in output
    assert (shared / "it").exists()


def test_a_deleted_pod_has_its_grace_and_leaves_nothing(plane: Plane, namespace: str, phase: Phase) -> None:
    polite = "trap 'echo asked; exit 0' TERM; while :; do sleep 0.1; done"
    stubborn = "trap '' TERM; exec sleep 987654"
    plane.api.apply(pod("polite", "sh", "-c", polite), namespace)
    plane.api.apply(pod("stubborn", "sh", "-c", stubborn), namespace)
    wait_for(lambda: phase("polite") == phase("stubborn") == "Running", "both run")
    wait_for(lambda: processes("987654"), "the process is there")
    for name in ("polite", "stubborn"):
        plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}")
    wait_for(lambda: not plane.pods(namespace), "both are gone")
    assert "asked" in plane.output(namespace, "polite")
    assert not processes("987654")


def test_images_that_cannot_be_pulled_wait_with_their_reason(plane: Plane, namespace: str) -> None:
    plane.api.apply(pod("absent", "true", image="registry.test/missing:1"), namespace)
    wait_for(lambda: waiting(plane, namespace, "absent").get("reason") == "ImagePullBackOff", "the image is missing")
    events = plane.api.items(f"/api/v1/namespaces/{namespace}/events")
    assert any('Failed to pull image "registry.test/missing:1"' in each["message"] for each in events)
    plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/absent")
    wait_for(lambda: not plane.pods(namespace), "the pod is gone")


def test_pods_are_evicted_and_out_of_memory_on_request(plane: Plane, namespace: str, phase: Phase) -> None:
    for name in ("Evicted", "OOMKilled"):
        plane.api.apply(pod(name.lower(), "sleep", "600"), namespace)
    wait_for(lambda: phase("evicted") == phase("oomkilled") == "Running", "both run")
    for name in ("Evicted", "OOMKilled"):
        plane.end_pod(namespace, name.lower(), name)
    wait_for(lambda: phase("evicted") == phase("oomkilled") == "Failed", "both have failed")
    evicted, killed = (
        plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}") for name in ("evicted", "oomkilled")
    )
    assert evicted["status"]["reason"] == "Evicted"
    ended = killed["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


def test_pods_outlive_their_kubelet_and_the_api_server(plane: Plane, namespace: str, phase: Phase) -> None:
    gate = plane.claim(namespace, "gate")
    script = "while [ ! -e /gate/open ]; do sleep 0.1; done; exit 3"
    volumes = [{"name": "gate", "persistentVolumeClaim": {"claimName": "gate"}}]
    mounts = {"volumeMounts": [{"name": "gate", "mountPath": "/gate"}]}
    plane.api.apply(pod("outlives", "sh", "-c", script, volumes=volumes, container=mounts), namespace)
    wait_for(lambda: phase("outlives") == "Running", "the pod runs")
    node = plane.pods(namespace)[0]["spec"]["nodeName"]
    plane.kill(node)
    plane.kill("apiserver")
    (gate / "open").touch()
    plane.start_service("apiserver")
    plane.wait_until_served()
    assert phase("outlives") == "Running"
    plane.start_node(node)
    wait_for(lambda: phase("outlives") == "Failed", "the next kubelet reports the end")
    [status] = plane.pods(namespace)[0]["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 3


def test_the_pods_of_a_lost_node_are_deleted_once_it_is_back(plane: Plane, namespace: str, phase: Phase) -> None:
    plane.api.apply(pod("lost", "sleep", "987653"), namespace)
    wait_for(lambda: phase("lost") == "Running", "the pod runs")
    node = plane.pods(namespace)[0]["spec"]["nodeName"]
    wait_for(lambda: processes("987653"), "the process is there")
    plane.kill_node(node)
    assert not processes("987653")
    plane.wait_for_node(node, is_ready=False)
    wait_for(lambda: plane.pods(namespace)[0]["metadata"].get("deletionTimestamp"), "the pod is evicted")
    plane.start_node(node)
    wait_for(lambda: not plane.pods(namespace), "the pod is gone")


def test_a_service_account_may_only_what_a_role_allows(plane: Plane, namespace: str) -> None:
    api = Api.of(plane.config_of(namespace, "default"))
    with pytest.raises(ApiError, match="403"):
        api.get(f"/api/v1/namespaces/{namespace}/pods")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_plane_ends_with_the_process_that_started_it(plane: Plane, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.kubernetes.plane.cluster"]
    starter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    config = Path(starter.stdout.readline().strip().partition("=")[2])
    api = Api.of(config)
    wait_for(lambda: api.find("/api/v1/namespaces/default/serviceaccounts/default"), "the namespace has an account")
    wait_for(lambda: is_applied(api, pod("left", "sleep", "987652")), "the pod is accepted")
    wait_for(lambda: processes("987652"), "the process is there")
    starter.send_signal(number)
    starter.wait()
    wait_for(lambda: not of_plane(str(config.parent)), "all has ended")
    assert not processes("987652")


def is_applied(api: Api, manifest: Object) -> bool:
    """Create a pod; return whether it is accepted: a new account has no token yet."""
    try:
        api.apply(manifest)
    except ApiError:
        return False
    return True


def of_plane(root: str) -> list[psutil.Process]:
    """Return the processes of a plane."""
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if any(root in part for part in process.info["cmdline"] or [])]
