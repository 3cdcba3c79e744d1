"""The pod that a script runs in: what the downward API of Kubernetes states is part of its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from parlab.client import pods
from parlab.client.launch import launch
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.environments import environment_rows
from parlab.pages.rows.pods import pod_rows
from tests.client.conftest import Script, ended
from tests.client.test_launchers import STEPS

LABELS = 'jobset.sigs.k8s.io/jobset-name="train"\nteam="a \\"quoted\\" team"\nbroken\n'
POD = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "POD_NAME": "train-node-0-0-abcde",
    "POD_NAMESPACE": "research",
    "NODE_NAME": "gpu-7",
}


def test_a_pod_states_its_name_namespace_node_and_labels(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text(LABELS)
    assert pods.pod({**POD, "PARLAB_POD_LABELS": str(tmp_path / "labels")}) == {
        "namespace": "research",
        "pod": "train-node-0-0-abcde",
        "node": "gpu-7",
        "labels": {"jobset.sigs.k8s.io/jobset-name": "train", "team": 'a "quoted" team'},
    }


def test_a_pod_without_the_downward_api_has_the_name_that_is_its_host_name(tmp_path: Path) -> None:
    environ = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "HOSTNAME": "train-0",
        "PARLAB_POD_LABELS": str(tmp_path / "none"),
    }
    assert pods.pod(environ) == {"pod": "train-0"}


def test_outside_of_pods_nothing_is_stated() -> None:
    assert pods.pod({"POD_NAME": "x", "HOSTNAME": "y"}) == {}


def test_launches_of_two_namespaces_with_the_same_address_are_two_launches() -> None:
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456", **POD}
    keys = [launch({**ranks, "POD_NAMESPACE": name}).key for name in ("research", "production")]
    assert keys[0] != keys[1]
    assert keys[0] == launch({**ranks, "RANK": "1"}).key


def test_process_1_of_a_pod_is_a_launcher_and_elsewhere_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from parlab.client.launch import Launch, facts

    place = Launch(1, 4, 1, "x", True, "key")
    monkeypatch.setattr("os.getppid", lambda: 1)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert facts(place)["launch"]["parent"] == ""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert facts(place)["launch"]["parent"]


@pytest.mark.django_db(transaction=True)
def test_the_pods_of_all_ranks_are_on_the_run(environ: dict[str, str], start: Script, tmp_path: Path) -> None:
    (tmp_path / "labels").write_text(LABELS)
    ranks = {"WORLD_SIZE": "2", "MASTER_ADDR": "train-0.train", "MASTER_PORT": "29500"}
    started = [
        start(
            STEPS,
            {
                **environ, **ranks, **POD, "RANK": str(rank), "POD_NAME": f"train-{rank}", "NODE_NAME": f"gpu-{rank}",
                "PARLAB_POD_LABELS": str(tmp_path / "labels"),
            },
            "3",
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in started:
        ended(process)
    attempt = Attempt.objects.get(run=Run.objects.get())
    rows = dict(environment_rows(attempt.environment))
    assert rows["Namespace"] == "research"
    assert rows["Pod"] in ("train-0", "train-1")
    assert rows["Label team"] == 'a "quoted" team'
    assert pod_rows(attempt) == [("Pod of rank 0", "train-0 on gpu-0"), ("Pod of rank 1", "train-1 on gpu-1")]
