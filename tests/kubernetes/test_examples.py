"""Scripts that Kubernetes starts without parlab: the examples run as they are, but for their image, and are one run."""

from __future__ import annotations

from collections.abc import Callable

import kubernetes_validate
import pytest
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

from parlab.client.launch import launch
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.environments import environment_rows
from parlab.lab.services.access.tokens import token_create
from parlab.pages.rows.pods import pod_rows
from parlab.series import store
from tests.kubernetes.examples import EXAMPLES, example, jobset_of_trainjob, pod_specs, pods_of_pytorchjob
from tests.kubernetes.plane.api import Object
from tests.kubernetes.plane.cluster import Plane
from tests.patience import wait_for

Adapt = Callable[[Object], Object]
TRAIN = """
import datetime, os, torch, torch.distributed as dist, parlab
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
with parlab.init("Kubernetes", telemetry=False) as run:
    for step in range(5):
        total = torch.ones(1) * (dist.get_rank() + 1)
        dist.all_reduce(total)
        run.log({"train/loss": total.item()}, step=step)
        if step == 2 and os.environ.get("RESTART") == "0" and dist.get_rank() == 3:
            raise RuntimeError("this rank fails once")
dist.destroy_process_group()
"""


def variables(pod: Object, annotations: dict[str, str]) -> dict[str, str]:
    """Return the variables of a pod's container, as its kubelet sets them."""
    values = {}
    for entry in pod["spec"]["containers"][0]["env"]:
        path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        values[entry["name"]] = entry.get("value", annotations.get(path, ""))
    return values


def test_the_ranks_of_a_pytorchjob_have_one_key_from_what_its_operator_sets() -> None:
    pods = [each for each in pods_of_pytorchjob(example("pytorchjob")) if each["kind"] == "Pod"]
    places = [launch(variables(pod, {})) for pod in pods]
    assert [(place.rank, place.world_size) for place in places] == [(0, 2), (1, 2)]
    assert len({place.key for place in places}) == 1
    assert places[0].key


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
def test_the_pods_of_each_example_follow_the_schema_of_kubernetes(name: str) -> None:
    manifest = jobset_of_trainjob(example(name)) if name == "trainjob" else example(name)
    specs = list(pod_specs(manifest))
    assert specs
    for spec in specs:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(pod, "1.30", strict=True)
    if manifest["apiVersion"] == "batch/v1":
        kubernetes_validate.validate(manifest, "1.30", strict=True)


@pytest.fixture
def adapted(plane: Plane, namespace: str, live_server: LiveServer, admin: User) -> Adapt:
    """Return a function that sets image, script, address and token of a manifest."""
    directory = plane.home / namespace
    directory.mkdir()
    (directory / "train.py").write_text(TRAIN)
    secret = {
        "metadata": {"name": "parlab"},
        "stringData": {"token": token_create(user=admin, name="pods", by=admin)[1]},
    }
    plane.api.create(f"/api/v1/namespaces/{namespace}/secrets", secret)

    def adapt(manifest: Object) -> Object:
        for spec in pod_specs(manifest):
            for container in spec["containers"]:
                container |= {"image": "parlab-node:test", "workingDir": str(directory)}
                for entry in container["env"]:
                    if entry["name"] == "PARLAB_URL":
                        entry["value"] = live_server.url
        return manifest

    return adapt


def check(plane: Plane, namespace: str, ranks: int, **labels: str) -> Attempt:
    """Check that all ranks have reported into one run that has finished, each its own series."""
    wait_for(lambda: all_ended(plane, namespace), "all pods have ended")
    outputs = {
        pod["metadata"]["name"]: plane.output(namespace, pod["metadata"]["name"]) for pod in plane.pods(namespace)
    }
    assert {pod["status"]["phase"] for pod in plane.pods(namespace)} == {"Succeeded"}, outputs
    run = Run.objects.get()
    assert (run.state, run.attempt_number) == ("finished", 1)
    attempt = run.attempts.get()
    for rank in range(ranks):
        series = store.read(attempt.pk, "train/loss", rank=rank)
        assert list(series.steps) == list(range(5)), rank
    rows = dict(environment_rows(attempt.environment))
    assert rows["Namespace"] == namespace
    assert rows["Node of the pod"] in ("n1", "n2", "n3")
    assert {name: rows[f"Label {name}"] for name in labels} == labels
    return attempt


def all_ended(plane: Plane, namespace: str) -> bool:
    """Return whether there are pods, and all have ended."""
    phases = [pod["status"]["phase"] for pod in plane.pods(namespace)]
    return bool(phases) and set(phases) <= {"Succeeded", "Failed"}


@pytest.mark.slow
@pytest.mark.kubernetes
@pytest.mark.django_db(transaction=True)
def test_a_jobset_of_two_pods_with_two_ranks_each_is_one_run(
    plane: Plane, namespace: str, jobsets: None, adapted: Adapt
) -> None:
    plane.api.apply(adapted(example("jobset")), namespace)
    attempt = check(plane, namespace, 4, team="vision")
    assert [title for title, _ in pod_rows(attempt)] == ["Pod of ranks 0, 1", "Pod of ranks 2, 3"]
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/train"
    wait_for(lambda: plane.api.get(path).get("status", {}).get("terminalState") == "Completed", "the JobSet has ended")


@pytest.mark.slow
@pytest.mark.kubernetes
@pytest.mark.django_db(transaction=True)
def test_a_jobset_that_starts_again_is_the_next_attempt_of_its_run(
    plane: Plane, namespace: str, jobsets: None, adapted: Adapt
) -> None:
    manifest = adapted(example("jobset"))
    [spec] = pod_specs(manifest)
    path = {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}
    spec["containers"][0]["env"].append({"name": "RESTART", "valueFrom": {"fieldRef": path}})
    plane.api.apply(manifest, namespace)
    place = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/train"
    wait_for(lambda: plane.api.get(place).get("status", {}).get("terminalState") == "Completed", "the JobSet has ended")
    run = Run.objects.get()
    states = list(run.attempts.order_by("number").values_list("state", flat=True))
    assert states == ["failed", "finished"]
    second = run.attempts.get(number=2)
    assert [list(store.read(second.pk, "train/loss", rank=rank).steps) for rank in range(4)] == [list(range(5))] * 4


@pytest.mark.slow
@pytest.mark.kubernetes
@pytest.mark.django_db(transaction=True)
def test_a_pytorchjob_of_two_pods_is_one_run(plane: Plane, namespace: str, adapted: Adapt) -> None:
    for manifest in pods_of_pytorchjob(adapted(example("pytorchjob"))):
        plane.api.apply(manifest, namespace)
    check(plane, namespace, 2, **{"team": "vision", "training.kubeflow.org/job-name": "train"})


@pytest.mark.slow
@pytest.mark.kubernetes
@pytest.mark.django_db(transaction=True)
def test_a_trainjob_of_two_nodes_is_one_run(plane: Plane, namespace: str, jobsets: None, adapted: Adapt) -> None:
    plane.api.apply(adapted(jobset_of_trainjob(example("trainjob"))), namespace)
    check(plane, namespace, 4, **{"jobset.sigs.k8s.io/jobset-name": "train"})
