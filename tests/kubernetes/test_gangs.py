"""A run over three pods: one member for each, which meet by their addresses and end together."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.controllers import WAITS, Controller
from tests.kubernetes.plane.cluster import Plane
from tests.patience import wait_for
from tests.runners.nodes import Nodes
from tests.runners.test_nodes import events, over_three, states

pytestmark = [pytest.mark.slow, pytest.mark.kubernetes]


class PodMembers(Nodes):
    """The members of one run, behind one controller."""

    def __init__(self, root: Path, controller: Controller) -> None:
        super().__init__(root, controller.environment["REDIS_URL"], 0)
        self.machines = [controller] * 3


@pytest.fixture
def members(
    plane: Plane,
    namespace: str,
    tmp_path: Path,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[PodMembers]:
    """Three members behind a controller."""
    controller = Controller(tmp_path, redis_url, plane, namespace)
    if request.param == "engine":
        controller.environment["TEST_SCRIPTS"] = ""
    monkeypatch.setattr("tests.runners.nodes.node_name", lambda node_rank: controller.name)
    members = PodMembers(tmp_path, controller)
    controller.start_daemon()
    yield members
    members.connection.release()
    print(controller.log.read_text()[-8000:])  # shown when the test fails
    plane.clear(namespace)
    assert not controller.close()


@pytest.mark.kubernetes_short
@pytest.mark.parametrize("members", ["engine"], indirect=True)
def test_a_pipeline_trains_over_three_pods(members: PodMembers, namespace: str, plane: Plane) -> None:
    members.start(over_three(kubernetes={"cpu": 5}))
    assert states(members.ends()) == ["finished"] * 3
    nodes = set()
    for node_rank in range(3):
        assert states(members.reports[node_rank]) == ["prepared", "running", "finished"]
        assert {step["rank"] for step in events(members.output[node_rank], "step")} == {node_rank}
        nodes.add(members.reports[node_rank][1].environment["kubernetes"]["node"])
        assert b"kubernetes: Pod parlab-" in members.output[node_rank]
        assert b": Scheduled: Successfully assigned" in members.output[node_rank]
    assert nodes == {"n1", "n2", "n3"}, "of 8 cores a node has room for one pod"
    (service,) = plane.api.items(f"/api/v1/namespaces/{namespace}/services")
    assert service["spec"]["clusterIP"] == "None"
    owner = service["metadata"]["ownerReferences"][0]
    assert owner["name"].endswith("-1-1-0"), "it goes with the first pod"


@pytest.mark.parametrize("members", ["script"], indirect=True)
def test_a_killed_supervisor_is_the_cause_and_the_others_end_as_its_consequence(members: PodMembers) -> None:
    controller = members.machines[0]
    assert isinstance(controller, Controller)
    controller.script(1, WAITS)
    members.start(over_three())
    for node_rank in range(3):
        members.says(node_rank, b"started in")
    controller.supervisor(1, 1).send_signal(signal.SIGKILL)
    ends = members.ends()
    assert (ends[1].state, ends[1].is_consequence) == ("lost", False)
    assert "its supervisor was killed" in ends[1].reason
    assert [end.state for end in ends if end is not ends[1]] == ["cancelled", "cancelled"]
    wait_for(lambda: not controller.processes(1), "no process of the run is left")
