"""From a configuration to objects of Kubernetes: pods, a job or a JobSet, and what belongs to them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runners.config import RunConfig
from runners.node.kubernetes import pods
from runners.node.kubernetes.pool import Volume

Object = dict[str, Any]

AFTER_GRACE_S = 15
"""Time beyond launcher.grace_s in which a supervisor ends the ranks, writes its last words and ships them."""
BACKSTOP_S = 86_400
"""Time beyond ttl_s after which the server deletes a job that its controller has not deleted."""
JOBSET = "jobset.x-k8s.io/v1alpha2"
CONTAINER = "parlab"
RUNTIME = "runtime"
STATE, MEMORY = "parlab-state", "parlab-shm"
REPLICATED_JOB = "node"
MEMBER = "runners.node.kubernetes.member"


class Order(NamedTuple):
    """One attempt as objects."""

    name: str
    """Name of the job, and beginning of the names of the pods."""
    state_id: str
    run: int
    attempt: int
    run_directory: str
    """Directory of the run of node_rank 0."""
    state_directory: str
    pool: str
    volume: Volume
    image: str
    """Image of the pool."""
    python: str
    """Python of the controller, which is in the image of the pool too."""
    package_root: str
    prefix: str
    """Where that Python is installed: with an image of its own, a run gets a copy of it there."""
    account: tuple[int, int] | None = None
    """User and group of the controller, which must read what pods write; None: those of the image."""
    variables: Mapping[str, str] = {}
    """Further variables of the supervisor."""
    member: str = MEMBER
    """Module that the pods run."""
    secret: Mapping[str, str] = {}
    """Texts of a Secret that has the name of the order; empty: there is none."""
    patch: Mapping[str, Any] = {}
    """What pods have besides."""
    rest_s: float = 0.0
    """Time beyond their grace for which pods may wait for the server."""

    @property
    def labels(self) -> dict[str, str]:
        return {
            "app.kubernetes.io/managed-by": "parlab",
            pods.CONTROLLER: self.state_id,
            pods.POOL: self.pool,
            pods.RUN: str(self.run),
            pods.ATTEMPT: str(self.attempt),
        }


def job_name_prefix(state_id: str) -> str:
    """Return the beginning of the names of all objects of a state directory."""
    return f"parlab-{state_id[:8]}-"


def job_name(state_id: str, run: int, attempt: int) -> str:
    """Return the name of the objects of an attempt: a create that is repeated after a kill finds them."""
    return f"{job_name_prefix(state_id)}{run}-{attempt}"


def pod_name(name: str, node_rank: int) -> str:
    return f"{name}-{node_rank}"


def image_of(config: RunConfig, order: Order) -> str:
    """Return the image of a run: the one that it names, or that of the pool."""
    return config.kubernetes.image or order.image


def plain_pods(config: RunConfig, order: Order) -> list[Object]:
    gang = config.cluster.nodes > 1
    made = []
    for node_rank in range(config.cluster.nodes):
        name = pod_name(order.name, node_rank)
        template = pod_template(config, order)
        metadata = template["metadata"]
        metadata["labels"] |= {pods.NODE_RANK: str(node_rank)} | _queue_labels(config)
        if "kueue.x-k8s.io/queue-name" in metadata["labels"] and gang:
            metadata["labels"] |= {"kueue.x-k8s.io/pod-group-name": order.name}
            metadata["annotations"] |= {"kueue.x-k8s.io/pod-group-total-count": str(config.cluster.nodes)}
        metadata["annotations"] |= _group_annotations(config, order)
        if gang:
            template["spec"] |= {"hostname": name, "subdomain": order.name}
        container = template["spec"]["containers"][0]
        container["env"] = [{"name": "PARLAB_POD_RANK", "value": str(node_rank)}, *container["env"]]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **metadata},
            "spec": template["spec"],
        }
        made.append(patched(pod, config.kubernetes.patch))
    return made


def indexed_job(config: RunConfig, order: Order) -> Object:
    """Return a run as an Indexed Job, for servers since 1.21."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": order.name, "labels": order.labels | _queue_labels(config)},
        "spec": _job_spec(config, order) | _suspended(config),
    }


def jobset(config: RunConfig, order: Order) -> Object:
    """Return a run as a JobSet of one Indexed Job."""
    template = {"metadata": {"labels": order.labels}, "spec": _job_spec(config, order)}
    return {
        "apiVersion": JOBSET,
        "kind": "JobSet",
        "metadata": {"name": order.name, "labels": order.labels | _queue_labels(config)},
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": True, "subdomain": order.name},
            "ttlSecondsAfterFinished": config.kubernetes.ttl_s + BACKSTOP_S,
            "replicatedJobs": [{"name": REPLICATED_JOB, "replicas": 1, "template": template}],
        }
        | _suspended(config),
    }


def _job_spec(config: RunConfig, order: Order) -> Object:
    template = pod_template(config, order)
    template["metadata"]["annotations"] |= _group_annotations(config, order)
    if config.cluster.nodes > 1:
        template["spec"]["subdomain"] = order.name
    return {
        "completionMode": "Indexed",
        "completions": config.cluster.nodes,
        "parallelism": config.cluster.nodes,
        # An attempt never starts twice: the next one is a job of its own.
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": config.kubernetes.ttl_s + BACKSTOP_S,
        "template": patched(template, config.kubernetes.patch),
    }


def _suspended(config: RunConfig) -> Object:
    """Return that the queue starts the job: Kueue resumes it once it is admitted."""
    return {"suspend": True} if config.kubernetes.queue and config.kubernetes.queue_system == "kueue" else {}


def _queue_labels(config: RunConfig) -> dict[str, str]:
    kubernetes = config.kubernetes
    if not kubernetes.queue or kubernetes.queue_system != "kueue":
        return {}
    return {"kueue.x-k8s.io/queue-name": kubernetes.queue}


def _group_annotations(config: RunConfig, order: Order) -> dict[str, str]:
    kubernetes = config.kubernetes
    if not kubernetes.queue or kubernetes.queue_system != "volcano":
        return {}
    return {"scheduling.k8s.io/group-name": order.name, "scheduling.volcano.sh/queue-name": kubernetes.queue}


def pod_group(config: RunConfig, order: Order, owner: Mapping[str, Any]) -> Object | None:
    """Return the group by which Volcano starts all pods of a run together, which goes with its owner; None without."""
    if not config.kubernetes.queue or config.kubernetes.queue_system != "volcano":
        return None
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": order.name, "labels": order.labels, "ownerReferences": [_reference(owner)]},
        "spec": {"minMember": config.cluster.nodes, "queue": config.kubernetes.queue},
    }


def headless_service(order: Order, owner: Mapping[str, Any]) -> Object:
    """Return the service that gives the pods of a gang their names in DNS; it goes with its owner."""
    selector = {name: order.labels[name] for name in (pods.CONTROLLER, pods.RUN, pods.ATTEMPT)}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": order.name, "labels": order.labels, "ownerReferences": [_reference(owner)]},
        "spec": {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": True},
    }


def secret(order: Order, owner: Mapping[str, Any]) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": order.name, "labels": order.labels, "ownerReferences": [_reference(owner)]},
        "stringData": dict(order.secret),
    }


def _reference(owner: Mapping[str, Any]) -> Object:
    metadata = owner["metadata"]
    named = {"name": metadata["name"], "uid": metadata["uid"]}
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], **named}


def pod_template(config: RunConfig, order: Order) -> Object:
    """Return metadata and spec of the pods of a run, which differ by their index only."""
    kubernetes = config.kubernetes
    annotations = {pods.TTL: str(kubernetes.ttl_s)}
    spec: Object = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(config.launcher.grace_s + AFTER_GRACE_S + order.rest_s),
        "enableServiceLinks": False,
        "automountServiceAccountToken": kubernetes.service_account is not None,
        "containers": [_container(config, order)],
        "volumes": _volumes(config, order),
    }
    if _has_own_image(config, order):
        spec["initContainers"] = [_runtime_copy(order)]
    if order.account is not None:
        user, group = order.account
        spec["securityContext"] = {"runAsUser": user, "runAsGroup": group, "fsGroup": group}
        spec["securityContext"]["fsGroupChangePolicy"] = "OnRootMismatch"
    if kubernetes.image_pull_secret:
        spec["imagePullSecrets"] = [{"name": kubernetes.image_pull_secret}]
    if kubernetes.node_selector:
        spec["nodeSelector"] = dict(kubernetes.node_selector)
    if kubernetes.tolerations:
        spec["tolerations"] = [toleration.model_dump(exclude_none=True) for toleration in kubernetes.tolerations]
    if affinity := _affinity(config, order):
        spec["affinity"] = affinity
    if kubernetes.priority_class:
        spec["priorityClassName"] = kubernetes.priority_class
    if kubernetes.service_account:
        spec["serviceAccountName"] = kubernetes.service_account
    if kubernetes.queue and kubernetes.queue_system == "volcano":
        spec["schedulerName"] = "volcano"
    metadata = {"labels": order.labels, "annotations": annotations}
    made: Object = patched({"metadata": metadata, "spec": spec}, order.patch)
    return made


def _has_own_image(config: RunConfig, order: Order) -> bool:
    return bool(order.image) and image_of(config, order) != order.image


def _container(config: RunConfig, order: Order) -> Object:
    kubernetes = config.kubernetes
    fields = {"POD_NAME": "metadata.name", "POD_IP": "status.podIP", "NODE_NAME": "spec.nodeName"}
    fields |= {"POD_NAMESPACE": "metadata.namespace"}
    variables = {"PYTHONPATH": order.package_root, "PYTHONUNBUFFERED": "1", "HOME": "/tmp"}
    variables |= {**order.variables, **kubernetes.environment}
    env: list[Object] = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": at}}} for name, at in fields.items()]
    env += [{"name": name, "value": value} for name, value in variables.items()]
    return {
        "name": CONTAINER,
        "image": image_of(config, order),
        "command": [order.python, "-m", order.member, order.run_directory],
        "env": env,
        "resources": resources(config),
        "volumeMounts": _mounts(config, order),
    }


def resources(config: RunConfig) -> Object:
    """Return requests and limits of a pod."""
    kubernetes = config.kubernetes
    cores = kubernetes.cpu or max(1, config.gpus_per_node * config.launcher.threads_per_rank)
    requests: dict[str, str] = {"cpu": f"{math.ceil(cores * 1000)}m"}
    limits: dict[str, str] = {}
    if kubernetes.memory_mib:
        limits["memory"] = f"{kubernetes.memory_mib}Mi"
    if config.device.needs_gpus:
        limits[kubernetes.gpu_resource] = str(config.gpus_per_node)
    limits |= kubernetes.resources
    return {"requests": requests | limits, **({"limits": limits} if limits else {})}


def _mounts(config: RunConfig, order: Order) -> list[Object]:
    kubernetes = config.kubernetes
    state: Object = {"name": STATE, "mountPath": order.state_directory}
    if order.volume.sub_path:
        state["subPath"] = order.volume.sub_path
    mounts = [state]
    mounts += [{"name": f"claim-{place}", "mountPath": path} for place, path in enumerate(kubernetes.claims.values())]
    mounts += [
        {"name": f"secret-{place}", "mountPath": path, "readOnly": True}
        for place, path in enumerate(kubernetes.secrets.values())
    ]
    if kubernetes.shared_memory_gib:
        mounts.append({"name": MEMORY, "mountPath": "/dev/shm"})
    if _has_own_image(config, order):
        mounts.append({"name": RUNTIME, "mountPath": order.prefix, "readOnly": True})
    return mounts


def _volumes(config: RunConfig, order: Order) -> list[Object]:
    kubernetes = config.kubernetes
    volumes: list[Object] = [{"name": STATE, **order.volume.source}]
    for place, claim in enumerate(kubernetes.claims):
        volumes.append({"name": f"claim-{place}", "persistentVolumeClaim": {"claimName": claim}})
    for place, secret in enumerate(kubernetes.secrets):
        volumes.append({"name": f"secret-{place}", "secret": {"secretName": secret, "defaultMode": 0o440}})
    if kubernetes.shared_memory_gib:
        size = f"{math.ceil(kubernetes.shared_memory_gib * 1024)}Mi"
        volumes.append({"name": MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    if _has_own_image(config, order):
        volumes.append({"name": RUNTIME, "emptyDir": {}})
    return volumes


def _runtime_copy(order: Order) -> Object:
    """Return the container that copies parlab and its Python for an image that has neither."""
    target = "/parlab-runtime"
    return {
        "name": RUNTIME,
        "image": order.image,
        "command": [order.python, "-m", "runners.node.kubernetes.runtime", target],
        "env": [{"name": "PYTHONPATH", "value": order.package_root}],
        "volumeMounts": [{"name": RUNTIME, "mountPath": target}],
    }


def _affinity(config: RunConfig, order: Order) -> Object:
    kubernetes = config.kubernetes
    affinity: Object = {}
    if kubernetes.exclude:
        names = [name for name in kubernetes.exclude.split(",") if name]
        # Fields take one value each. The label of the host is not always the name of the node.
        without = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in names]
        terms = {"nodeSelectorTerms": [{"matchFields": without}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if kubernetes.topology:
        own = {"matchLabels": {name: order.labels[name] for name in (pods.CONTROLLER, pods.RUN, pods.ATTEMPT)}}
        term = {"labelSelector": own, "topologyKey": kubernetes.topology}
        if kubernetes.topology_is_required:
            affinity["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        else:
            weighted = [{"weight": 100, "podAffinityTerm": term}]
            affinity["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": weighted}
    return affinity


def patched(value: Any, patch: Any) -> Any:
    """Merge a patch into an object: mappings by key, None deletes, lists of named things by name."""
    if isinstance(value, dict) and isinstance(patch, dict):
        merged = {name: value[name] for name in value if name not in patch}
        for name, change in patch.items():
            if change is not None:
                merged[name] = patched(value.get(name), change)
        return merged
    if _are_named(value) and _are_named(patch):
        by_name = {each["name"]: each for each in patch}
        merged_list = [patched(each, by_name.pop(each["name"], {})) for each in value]
        return [*merged_list, *by_name.values()]
    return patch


def _are_named(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(each, dict) and "name" in each for each in value)
    )
