"""Runs as JobSets and as Indexed Jobs, which this server has not: a small controller creates the pods of a JobSet."""

from __future__ import annotations

from pathlib import Path

import pytest

from runners.node.kubernetes.api import Api
from runners.node.kubernetes.cluster import Cluster
from tests.kubernetes.controllers import WAITS, Controller, config
from tests.kubernetes.plane.cluster import Plane
from tests.patience import wait_for
from tests.runners.conftest import Server
from tests.slurm.conftest import AttentiveServer

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]


@pytest.mark.usefixtures("jobsets")
def test_a_run_is_a_jobset_where_the_cluster_serves_them(
    plane: Plane, namespace: str, tmp_path: Path, redis_url: str
) -> None:
    controller, server = Controller(tmp_path, redis_url, plane, namespace), AttentiveServer(redis_url)
    controller.environment.pop("PARLAB_KUBERNETES_OBJECTS", None)
    controller.start_daemon()
    try:
        run_and_end(controller, server, plane, namespace)
    finally:
        server.close()
        print(controller.log.read_text()[-8000:])  # shown when the test fails
        plane.clear(namespace)
        assert not controller.close()


def run_and_end(controller: Controller, server: Server, plane: Plane, namespace: str) -> None:
    jobsets = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets"
    for run, is_cancelled in ((901, False), (902, True)):
        controller.script(run, WAITS)
        server.start(run, config=config())
        server.until(lambda: b"started in" in server.output[run, 1], f"run {run} has started")  # noqa: B023
        (jobset,) = [each for each in plane.api.items(jobsets) if f"-{run}-1" in each["metadata"]["name"]]
        (pod,) = [each for each in controller.pods() if each["metadata"]["labels"]["parlab/run"] == str(run)]
        assert pod["metadata"]["name"].startswith(f"{jobset['metadata']['name']}-node-0-0-")
        if is_cancelled:
            server.cancel(run)
        else:
            controller.open(run)
        assert server.end_of(run).state == ("cancelled" if is_cancelled else "finished")
        wait_for(lambda: not controller.processes(run), "no process is left")  # noqa: B023
    suspended = 903
    server.start(suspended, config=config(kubernetes={"queue": "team"}))
    end = server.end_of(suspended)
    assert end.state == "failed"
    assert "kubernetes.queue: the cluster has no Kueue; leave kubernetes.queue empty" in end.reason


def test_what_a_run_becomes_follows_from_the_server(
    plane: Plane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    api = Api.connect(namespace, None)
    answers = {"/version": {"major": "1", "minor": "29+"}}
    monkeypatch.setattr(api, "get", lambda path, **query: answers.get(path))
    assert Cluster(api, "0123456789").objects("auto") == "job"
    answers["/version"]["minor"] = "20"
    assert Cluster(api, "0123456789").objects("auto") == "pods"
    answers["/apis/jobset.x-k8s.io/v1alpha2"] = {"kind": "APIResourceList"}
    assert Cluster(api, "0123456789").objects("auto") == "jobset"
    assert Cluster(api, "0123456789").objects("pods") == "pods"
