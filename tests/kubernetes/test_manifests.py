"""From a configuration to objects of Kubernetes, which the models of the official client accept."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes import client

from runners.config import RunConfig
from runners.node.kubernetes import manifests
from runners.node.kubernetes.manifests import Order
from runners.node.kubernetes.pool import Volume
from runners.node.kubernetes.without_volume.manifests import MEMBER, pod_patch
from tests.conftest import SMALL

ORDER = Order(
    name="parlab-abcdef01-12-2",
    state_id="abcdef0123456789",
    run=12,
    attempt=2,
    run_directory="/state/runs/12-2",
    state_directory="/state",
    pool="cluster",
    volume=Volume(claim="parlab-state"),
    image="registry/node:2",
    python="/opt/parlab/bin/python3",
    package_root="/opt/parlab/lib/python3.11/site-packages",
    prefix="/opt/parlab",
    account=(10001, 10001),
)
OWNER = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "first", "uid": "u"}}
GANG = {"cluster": {"nodes": 2, "gpus_per_node": 1}}


def config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({**SMALL, **sections})


def through_the_client(content: Any, kind: str) -> Any:
    """Read an object with a model of the client and write it again: what the model does not know is gone."""
    api = client.ApiClient()
    model = api.deserialize(SimpleNamespace(data=json.dumps(content)), kind)
    return api.sanitize_for_serialization(model)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        GANG,
        {
            "kubernetes": {
                "image": "team/train:7",
                "image_pull_secret": "registry",
                "cpu": 1.5,
                "memory_mib": 2048,
                "resources": {"rdma/hca": "1"},
                "shared_memory_gib": 8,
                "claims": {"data": "/data"},
                "secrets": {"hub": "/secrets/hub"},
                "node_selector": {"gpu": "h100"},
                "exclude": "n1,n2",
                "tolerations": [{"key": "nvidia.com/gpu"}],
                "topology": "topology.kubernetes.io/zone",
                "priority_class": "high",
                "service_account": "trainer",
                "queue": "team",
            }
        },
    ],
)
@pytest.mark.parametrize("has_volume", [True, False])
def test_all_that_is_written_is_known_to_the_clients_models(sections: dict[str, Any], has_volume: bool) -> None:
    order = ORDER if has_volume else posting_order()
    for pod in manifests.plain_pods(config(**sections), order):
        assert through_the_client(pod, "V1Pod") == pod
    job = manifests.indexed_job(config(**sections), order)
    assert through_the_client(job, "V1Job") == job
    jobset = manifests.jobset(config(**sections), order)
    (replicated,) = jobset["spec"]["replicatedJobs"]
    assert through_the_client(replicated["template"], "V1JobTemplateSpec") == replicated["template"]


def test_a_gang_is_one_pod_for_each_node_with_names_in_dns() -> None:
    pods = manifests.plain_pods(config(**GANG), ORDER)
    assert [pod["metadata"]["name"] for pod in pods] == ["parlab-abcdef01-12-2-0", "parlab-abcdef01-12-2-1"]
    assert [pod["metadata"]["labels"]["parlab/node-rank"] for pod in pods] == ["0", "1"]
    assert [pod["spec"]["hostname"] for pod in pods] == ["parlab-abcdef01-12-2-0", "parlab-abcdef01-12-2-1"]
    assert {pod["spec"]["subdomain"] for pod in pods} == {ORDER.name}
    service = manifests.headless_service(ORDER, OWNER)
    assert through_the_client(service, "V1Service") == service
    assert service["spec"]["clusterIP"] == "None"
    labels = pods[1]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_a_pod_ends_after_the_grace_of_its_run_and_never_starts_twice() -> None:
    (pod,) = manifests.plain_pods(config(launcher={"grace_s": 120}), ORDER)
    assert pod["spec"]["terminationGracePeriodSeconds"] == 120 + manifests.AFTER_GRACE_S
    assert pod["spec"]["restartPolicy"] == "Never"
    job = manifests.indexed_job(config(), ORDER)
    assert (job["spec"]["backoffLimit"], job["spec"]["completionMode"]) == (0, "Indexed")
    assert manifests.jobset(config(), ORDER)["spec"]["failurePolicy"] == {"maxRestarts": 0}


def test_secrets_are_files_and_no_arguments_or_variables() -> None:
    (pod,) = manifests.plain_pods(config(kubernetes={"secrets": {"hub": "/secrets/hub"}}), ORDER)
    mounts = {mount["name"]: mount for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["secret-0"] == {"name": "secret-0", "mountPath": "/secrets/hub", "readOnly": True}
    assert "redis" not in json.dumps(pod)
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_pods_see_the_state_directory_where_the_controller_does() -> None:
    (pod,) = manifests.plain_pods(config(), ORDER._replace(volume=Volume(claim="nfs", sub_path="parlab")))
    container = pod["spec"]["containers"][0]
    assert container["volumeMounts"] == [{"name": "parlab-state", "mountPath": "/state", "subPath": "parlab"}]
    assert pod["spec"]["volumes"] == [{"name": "parlab-state", "persistentVolumeClaim": {"claimName": "nfs"}}]
    assert container["command"] == [ORDER.python, "-m", "runners.node.kubernetes.member", "/state/runs/12-2"]
    (pod,) = manifests.plain_pods(config(), ORDER._replace(volume=Volume(host_path="/lustre/parlab")))
    assert pod["spec"]["volumes"][0]["hostPath"] == {"path": "/lustre/parlab", "type": "Directory"}


def posting_order() -> manifests.Order:
    """Return an order whose pods share no volume with their controller."""
    secret = {"order.json": '{"secret": "8f3a"}'}
    without = ORDER._replace(volume=Volume(), member=MEMBER, secret=secret, rest_s=60)
    return without._replace(patch=pod_patch(ORDER.name))


def test_without_a_shared_volume_the_order_is_a_secret_and_the_spool_is_the_pods_own() -> None:
    order = posting_order()
    (pod,) = manifests.plain_pods(config(launcher={"grace_s": 5}), order)
    (container,) = pod["spec"]["containers"]
    places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert places == {"parlab-state": "/state", "parlab-order": "/parlab/order", "parlab-word": "/parlab/word"}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["parlab-state"]["emptyDir"] == {}
    assert volumes["parlab-order"]["secret"]["secretName"] == ORDER.name
    assert "8f3a" not in json.dumps(pod)
    assert container["terminationMessagePath"] == "/parlab/end"
    assert pod["spec"]["restartPolicy"] == "OnFailure", "a second start posts what the first one has left"
    for job in (manifests.indexed_job(config(), order), manifests.jobset(config(), order)):
        text = json.dumps(job)
        assert all(place in text for place in ('"/parlab/order"', '"/parlab/word"', '"OnFailure"', f'"{MEMBER}"'))
        assert "8f3a" not in text
    assert pod["spec"]["terminationGracePeriodSeconds"] == 5 + 15 + 60
    secret = manifests.secret(order, OWNER)
    assert secret["stringData"] == {"order.json": '{"secret": "8f3a"}'}
    assert secret["metadata"]["ownerReferences"][0]["name"] == "first"
    assert through_the_client(secret, "V1Secret") == secret


def test_resources_follow_from_the_ranks_and_their_device() -> None:
    assert manifests.resources(config()) == {"requests": {"cpu": "2000m"}}
    on_gpus = config(cluster={"device": "cuda"}, kubernetes={"gpu_resource": "amd.com/gpu", "memory_mib": 512})
    limits = {"amd.com/gpu": "2", "memory": "512Mi"}
    assert manifests.resources(on_gpus) == {"requests": {"cpu": "2000m", **limits}, "limits": limits}


def test_an_image_of_its_own_gets_parlab_from_the_image_of_the_pool() -> None:
    (pod,) = manifests.plain_pods(config(kubernetes={"image": "team/train:7"}), ORDER)
    (copy,) = pod["spec"]["initContainers"]
    assert copy["image"] == "registry/node:2"
    assert copy["command"][1:] == ["-m", "runners.node.kubernetes.runtime", "/parlab-runtime"]
    container = pod["spec"]["containers"][0]
    assert container["image"] == "team/train:7"
    assert {"name": "runtime", "mountPath": "/opt/parlab", "readOnly": True} in container["volumeMounts"]
    (own,) = manifests.plain_pods(config(kubernetes={"image": "registry/node:2"}), ORDER)
    assert "initContainers" not in own["spec"]


def test_the_queue_of_kueue_is_a_label_and_its_group_has_the_size_of_the_gang() -> None:
    queued = config(**GANG, kubernetes={"queue": "team"})
    for pod in manifests.plain_pods(queued, ORDER):
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == ORDER.name
        assert pod["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "2"
    for made in (manifests.indexed_job(queued, ORDER), manifests.jobset(queued, ORDER)):
        assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
        assert made["spec"]["suspend"] is True
    assert manifests.pod_group(queued, ORDER, OWNER) is None


def test_the_queue_of_volcano_is_a_group_that_starts_together() -> None:
    queued = config(**GANG, kubernetes={"queue": "team", "queue_system": "volcano"})
    group = manifests.pod_group(queued, ORDER, OWNER)
    assert group is not None
    assert group["spec"] == {"minMember": 2, "queue": "team"}
    for pod in manifests.plain_pods(queued, ORDER):
        assert pod["spec"]["schedulerName"] == "volcano"
        assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group["metadata"]["name"]


def test_bad_nodes_are_excluded_and_topology_is_an_affinity_to_the_own_pods() -> None:
    fields = {"exclude": "n1,n7", "topology": "rack", "topology_is_required": True}
    (pod,) = manifests.plain_pods(config(kubernetes=fields), ORDER)
    (term,) = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    without = {"key": "metadata.name", "operator": "NotIn"}
    assert term["matchFields"] == [without | {"values": ["n1"]}, without | {"values": ["n7"]}]
    (near,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["topologyKey"] == "rack"
    assert near["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_a_patch_is_merged_and_lists_of_names_by_name() -> None:
    patch = {
        "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"}},
        "spec": {
            "hostNetwork": True,
            "enableServiceLinks": None,
            "containers": [{"name": "parlab", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}],
            "volumes": [{"name": "more", "emptyDir": {}}],
        },
    }
    (plain,) = manifests.plain_pods(config(), ORDER)
    (pod,) = manifests.plain_pods(config(kubernetes={"patch": patch}), ORDER)
    assert pod["spec"]["hostNetwork"] is True
    assert "enableServiceLinks" not in pod["spec"]
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert container["command"] == plain["spec"]["containers"][0]["command"]
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["parlab-state", "more"]
    assert plain["metadata"]["annotations"].items() <= pod["metadata"]["annotations"].items()
    job = manifests.indexed_job(config(kubernetes={"patch": patch}), ORDER)
    assert job["spec"]["template"]["spec"]["hostNetwork"] is True


def test_names_are_the_same_each_time_and_short_enough_for_labels() -> None:
    name = manifests.job_name("abcdef0123456789", 12_345_678, 999)
    assert name == "parlab-abcdef01-12345678-999"
    assert len(manifests.pod_name(name, 9999)) < 63
