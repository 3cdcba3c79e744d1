"""A run over three nodes as a JobSet, and a gang whose node is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.node.kubernetes.pool import IMAGE_S
from tests.kubernetes.controllers import Controller, members_of
from tests.kubernetes.jobsets import INDEX
from tests.kubernetes.plane.cluster import Plane
from tests.patience import wait_for
from tests.runners.conftest import NODE
from tests.runners.nodes import Nodes
from tests.runners.test_nodes import events, over_three, states

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]

SPREAD = {"spec": {"topologySpreadConstraints": [
    {
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app.kubernetes.io/managed-by": "parlab"}},
    }
]}}  # fmt: skip
"""A pod on each node."""
WAITS = """
import os, time
print("started on", os.environ["NODE_NAME"], flush=True)
time.sleep(600)
"""


class Gang(Nodes):
    """The pods of one run, behind the daemon of their controller."""

    def __init__(self, root: Path, controller: Controller) -> None:
        super().__init__(root, controller.environment["REDIS_URL"], 0)
        self.machines = [controller] * 3


@pytest.fixture
def gang(
    plane: Plane,
    namespace: str,
    tmp_path: Path,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Gang]:
    """Three pods behind a controller that makes objects of one kind."""
    objects = request.param
    if objects == "jobset":
        request.getfixturevalue("jobsets")
    controller = Controller(tmp_path, redis_url, plane, namespace)
    controller.environment |= {"PARLAB_KUBERNETES_OBJECTS": objects, "TEST_ENGINES": "1"}
    monkeypatch.setattr("tests.runners.nodes.node_name", lambda node_rank: NODE)
    gang = Gang(tmp_path, controller)
    controller.start_daemon()
    yield gang
    gang.connection.release()
    print(controller.log.read_text()[-8000:])  # shown when the test fails
    plane.wait_until_served()
    plane.clear(namespace)
    assert not controller.close()


@pytest.mark.parametrize("gang", ["jobset"], indirect=True)
def test_a_pipeline_trains_over_the_pods_of_a_jobset(gang: Gang, plane: Plane, namespace: str) -> None:
    gang.start(over_three(kubernetes={"patch": SPREAD}))
    assert states(gang.ends()) == ["finished"] * 3
    for node_rank in range(3):
        assert states(gang.reports[node_rank]) == ["prepared", "running", "finished"]
        assert {step["rank"] for step in events(gang.output[node_rank], "step")} == {node_rank}
    described = [gang.reports[node_rank][1].environment["kubernetes"] for node_rank in range(3)]
    assert {each["node"] for each in described} == {"n1", "n2", "n3"}
    assert len({each["pod"] for each in described}) == 3


@pytest.mark.parametrize("gang", ["jobset"], indirect=True)
def test_a_killed_supervisor_is_the_cause_although_its_jobset_ends_the_others(
    gang: Gang, plane: Plane, namespace: str
) -> None:
    gang.script(WAITS)
    gang.start(over_three(kubernetes={"patch": SPREAD}))
    for node_rank in range(3):
        gang.says(node_rank, b"started on")
    names = {pod["metadata"]["annotations"][INDEX]: pod["metadata"]["name"] for pod in plane.pods(namespace)}
    gang.cancels_peers = False  # Kubernetes ends them
    members_of(names["1"])[-1].send_signal(signal.SIGKILL)
    ends = gang.ends()
    assert (ends[1].state, ends[1].is_consequence) == ("lost", False), [end.reason for end in ends]
    assert "its supervisor was killed" in ends[1].reason
    for node_rank in (0, 2):
        assert (ends[node_rank].state, ends[node_rank].is_consequence) == ("cancelled", True)
        assert ends[node_rank].reason.endswith("was deleted by its job, because another pod of it has failed")
    wait_for(lambda: not gang.machines[0].processes(1), "no process of the run is left")


@pytest.mark.parametrize("gang", ["pods", "jobset"], indirect=True)
def test_a_lost_node_ends_the_whole_gang_and_is_the_cause(gang: Gang, plane: Plane, namespace: str) -> None:
    gang.script(WAITS)
    gang.start(over_three(kubernetes={"patch": SPREAD}))
    for node_rank in range(3):
        gang.says(node_rank, b"started on")
    launch = gang.machines[0].state.find(1, 1, 1).read_launch()
    assert launch["go_within_s"] >= IMAGE_S, "the others may have to pull the image"
    away = gang.reports[1][1].environment["kubernetes"]["node"]
    plane.kill_node(away)
    try:
        ends = gang.ends()
        assert (ends[1].state, ends[1].is_consequence) == ("lost", False), [end.reason for end in ends]
        assert away in ends[1].reason
        assert [ends[node_rank].state for node_rank in (0, 2)] == ["cancelled"] * 2
    finally:
        plane.start_node(away)
    wait_for(lambda: not gang.machines[0].processes(1), "no process of the run is left")
