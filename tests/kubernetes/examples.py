"""The examples of `deploy/kubernetes/examples`, and the pods that their controllers make of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.plane.api import Object

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "examples"
PORT = 23456
"""Port of PyTorchJob; Kubeflow Trainer uses 29400."""
TRAINER_PORT = 29400


def example(name: str) -> Object:
    """Read a manifest."""
    manifest: Object = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    return copy.deepcopy(manifest)  # an anchor is one object in two places


def pods_of_pytorchjob(manifest: Object) -> Iterator[Object]:
    """Yield the pods and headless services that the training operator makes of a PyTorchJob."""
    name, replicas = manifest["metadata"]["name"], manifest["spec"]["pytorchReplicaSpecs"]
    size = sum(each["replicas"] for each in replicas.values())
    first = 0
    for kind in ("Master", "Worker"):
        for index in range(replicas[kind]["replicas"]):
            own = f"{name}-{kind.lower()}-{index}"
            labels = {
                "training.kubeflow.org/job-name": name,
                "training.kubeflow.org/replica-type": kind.lower(),
                "training.kubeflow.org/replica-index": str(index),
            }
            variables = {
                "MASTER_ADDR": f"{name}-master-0",
                "MASTER_PORT": PORT,
                "WORLD_SIZE": size,
                "RANK": first + index,
            }
            template = copy.deepcopy(replicas[kind]["template"])
            yield {"apiVersion": "v1", "kind": "Pod", **_pod(template, own, labels, variables, replicas[kind])}
            service = {"clusterIP": "None", "selector": labels, "ports": [{"port": PORT}]}
            yield {"apiVersion": "v1", "kind": "Service", "metadata": {"name": own}, "spec": service}
        first += replicas[kind]["replicas"]


def _pod(template: Object, name: str, labels: dict[str, str], variables: dict[str, Any], replica: Object) -> Object:
    _add_variables(template["spec"], variables)
    meta = {"name": name, "labels": {**template["metadata"]["labels"], **labels}}
    return {"metadata": meta, "spec": {**template["spec"], "restartPolicy": replica["restartPolicy"]}}


def jobset_of_trainjob(manifest: Object) -> Object:
    """Return the JobSet that Kubeflow Trainer makes of a TrainJob with the runtime torch-distributed."""
    name, trainer = manifest["metadata"]["name"], manifest["spec"]["trainer"]
    nodes = trainer["numNodes"]
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    variables = {
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": trainer["numProcPerNode"],
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": TRAINER_PORT,
    }
    container = {"name": "node", "image": trainer["image"], "command": trainer["command"], "env": trainer["env"]}
    spec: Object = {"restartPolicy": "Never", "containers": [container]}
    _add_variables(spec, variables)
    container["env"].append({"name": "PET_NODE_RANK", "valueFrom": index})
    [override] = manifest["spec"]["podTemplateOverrides"]
    container["volumeMounts"] = override["spec"]["containers"][0]["volumeMounts"]
    spec["volumes"] = override["spec"]["volumes"]
    job = {"completionMode": "Indexed", "completions": nodes, "parallelism": nodes, "backoffLimit": 0}
    group = {"name": "node", "template": {"spec": {**job, "template": {"spec": spec}}}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [group]},
    }


def _add_variables(spec: Object, variables: dict[str, Any]) -> None:
    for container in spec["containers"]:
        more = [{"name": name, "value": str(value)} for name, value in variables.items()]
        container["env"] = [*container.get("env", []), *more]


def pod_specs(manifest: Any) -> Iterator[Object]:
    """Yield the specifications of pods anywhere in a manifest."""
    if isinstance(manifest, dict):
        if "containers" in manifest and "image" in manifest["containers"][0]:
            yield manifest
        for value in manifest.values():
            yield from pod_specs(value)
    elif isinstance(manifest, list):
        for value in manifest:
            yield from pod_specs(value)
