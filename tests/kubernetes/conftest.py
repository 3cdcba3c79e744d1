"""A real control plane of Kubernetes with three nodes: one for all tests, each of which has a namespace of its own."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kubernetes.jobsets import DEFINITION
from tests.kubernetes.plane.api import Object
from tests.kubernetes.plane.build import why_not
from tests.kubernetes.plane.cluster import NODES, Plane, running
from tests.kubernetes.plane.containers import ROOT
from tests.patience import wait_for

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def running_plane() -> Iterator[Plane]:
    """One plane for all tests."""
    if reason := why_not():
        pytest.skip(reason)
    with running() as plane:
        yield plane


@pytest.fixture(scope="session")
def jobsets(running_plane: Plane) -> Iterator[None]:
    """JobSets are served, and their controller runs."""
    running_plane.api.apply(DEFINITION)
    wait_for(lambda: running_plane.api.text("/apis/jobset.x-k8s.io/v1alpha2"), "JobSets are served")
    controller = subprocess.Popen(
        [sys.executable, "-m", "tests.kubernetes.jobsets", str(running_plane.kubeconfig)], cwd=ROOT
    )
    yield
    controller.kill()
    controller.wait()


@pytest.fixture
def plane(running_plane: Plane) -> Iterator[Plane]:
    """The plane, whole even if the last test has left it without a service or a node."""
    running_plane.mend()
    for node in NODES:
        if not running_plane.is_running(node):
            running_plane.start_node(node)
    for node in NODES:
        running_plane.wait_for_node(node, is_ready=True)
    yield running_plane
    print(running_plane.log())  # shown when the test fails


@pytest.fixture
def namespace(plane: Plane) -> Iterator[str]:
    """An empty namespace; its pods are gone after the test."""
    name = plane.namespace(f"test-{next(_numbers)}")
    yield name
    plane.wait_until_served()
    for each in plane.pods(name):  # shown when the test fails
        print(each["metadata"]["name"], each["spec"].get("nodeName"), each["status"])
    plane.clear(name)


def pod(name: str, *command: str, image: str = "parlab-node:test", **spec: Any) -> Object:
    """Return a pod of one container."""
    container = {"name": "main", "image": image, "command": list(command), **spec.pop("container", {})}
    meta = {"name": name, **spec.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": _spec(container, spec)}


def _spec(container: Object, more: Object) -> Object:
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": [container], **more}


@pytest.fixture
def phase(plane: Plane, namespace: str) -> Callable[[str], str]:
    """Return the phase of a pod; empty once it is gone."""

    def of(name: str) -> str:
        found = plane.api.find(f"/api/v1/namespaces/{namespace}/pods/{name}")
        return found["status"]["phase"] if found else ""

    return of
