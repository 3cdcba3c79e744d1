"""Runs over three nodes: daemons with an address each, real engines, and a server that speaks the protocol."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from runners.wire.protocol import Heartbeat, Report
from tests.conftest import SMALL
from tests.patience import PATIENCE_S, wait_for
from tests.runners.conftest import ROOT
from tests.runners.namespaces import DEVICE, SUBNET
from tests.runners.nodes import Nodes, running_nodes, three_networked_nodes, three_nodes

__all__ = ["running_nodes", "three_networked_nodes", "three_nodes"]

LONG = {**SMALL["train"], "iterations": 100_000}


def over_three(**sections: Any) -> dict[str, Any]:
    """A configuration with one rank on each of three nodes."""
    data = {
        **SMALL,
        "model": {**SMALL["model"], "num_layers": 3},
        "parallel": {"pipeline_parallel_size": 3},
        "cluster": {"nodes": 3, "device": "cpu"},
    }
    return {**data, **sections}


def events(output: bytes, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith(b'{"parlab":')]
    return [line for line in lines if line["event"] == name]


def states(reports: list[Report]) -> list[str]:
    return [report.state for report in reports]


STEPS = """
import json, os, time
rank = int(os.environ["NODE_RANK"])
for step in range(1, 5):
    event = {"parlab": 1, "t": time.time(), "rank": rank, "event": "step", "step": step, "step_time_s": 0.1}
    print(json.dumps(event, separators=(",", ":")), flush=True)
"""
ENDLESS = f"{STEPS}\ntime.sleep(600)\n"


def test_scripts_run_over_three_nodes(three_nodes: Nodes) -> None:
    three_nodes.script(STEPS)
    three_nodes.start(over_three())
    assert states(three_nodes.ends()) == ["finished"] * 3
    for node_rank in range(3):
        assert states(three_nodes.reports[node_rank]) == ["prepared", "running", "finished"]
        steps = events(three_nodes.output[node_rank], "step")
        assert [(step["rank"], step["step"]) for step in steps] == [(node_rank, step) for step in range(1, 5)]
        assert three_nodes.stamps[node_rank] == sorted(three_nodes.stamps[node_rank])
    assert [peer.address for peer in three_nodes.peers()] == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]


@pytest.mark.slow
def test_a_pipeline_trains_over_three_nodes(three_nodes: Nodes) -> None:
    three_nodes.start(over_three())
    assert states(three_nodes.ends()) == ["finished"] * 3
    for node_rank in range(3):
        assert states(three_nodes.reports[node_rank]) == ["prepared", "running", "finished"]
        steps = events(three_nodes.output[node_rank], "step")
        assert {step["rank"] for step in steps} == {node_rank}
        assert len(steps) == SMALL["train"]["iterations"]
        assert three_nodes.stamps[node_rank] == sorted(three_nodes.stamps[node_rank])
        assert {event["rank"] for event in events(three_nodes.output[node_rank], "telemetry")} <= {-1 - node_rank}
    addresses = [peer.address for peer in three_nodes.peers()]
    assert addresses == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]


@pytest.mark.slow
def test_nodes_in_networks_of_their_own_meet_at_the_address_with_which_they_reach_redis(
    three_networked_nodes: Nodes,
) -> None:
    nodes = three_networked_nodes
    collectives = {"operation": "all-reduce", "min_bytes": 2**20, "max_bytes": 2**20}
    sections: dict[str, Any] = {
        "parallel": {"engine": "allreduce", "data_parallel_size": 3},
        "collectives": collectives,
    }
    network = {"apply": "interface", "bandwidth_gbps": 0.1}
    nodes.start(over_three(**sections, network=network, cluster={"nodes": 3, "device": "cpu", "interface": SUBNET}))
    assert states(nodes.ends()) == ["finished"] * 3
    assert [peer.address for peer in nodes.peers()] == ["198.19.7.1", "198.19.7.2", "198.19.7.3"]
    variables = [
        next(r for r in nodes.reports[rank] if r.state == "running").environment["variables"] for rank in (0, 2)
    ]
    assert {each["GLOO_SOCKET_IFNAME"] for each in variables} == {DEVICE}
    links = [event for rank in range(3) for event in events(nodes.output[rank], "link")]
    assert [(link["by"], link["interface"], link["bits_per_s"]) for link in links] == [("interface", DEVICE, 1e8)] * 3
    (measured,) = events(nodes.output[0], "step")
    assert measured["busbw/all-reduce"] < 1.5e8 / 8, "each node sends at the rate of section network"
    for machine in nodes.machines:
        rules = subprocess.run([*machine.prefix, "tc", "qdisc", "show", "dev", DEVICE], capture_output=True, check=True)
        assert b"70a1:" not in rules.stdout, "the interface is as it was"


def test_an_interface_that_the_owner_of_the_node_has_not_allowed_is_refused(three_nodes: Nodes) -> None:
    network = {"apply": "interface", "interface": "eth9", "bandwidth_gbps": 1}
    three_nodes.prepare(over_three(network=network))
    assert re.search(r"network\.interface eth9 .* --shape eth9|eth9 does not exist", three_nodes.ends()[0].reason)


@pytest.mark.slow
def test_megatron_trains_over_three_nodes_with_two_ranks_each(three_nodes: Nodes) -> None:
    parallel = {"engine": "megatron", "tensor_parallel_size": 2, "data_parallel_size": 3}
    train = {**SMALL["train"], "global_batch_size": 6}
    # mpirun numbers the ranks of all nodes by itself.
    three_nodes.start({**over_three(), "parallel": parallel, "train": train, "launcher": {"kind": "mpirun"}})
    assert states(three_nodes.ends()) == ["finished"] * 3
    ranks = [sorted({step["rank"] for step in events(three_nodes.output[node], "step")}) for node in range(3)]
    assert ranks == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_run_everywhere_and_is_named_as_the_cause(three_nodes: Nodes) -> None:
    three_nodes.start(over_three(train=LONG))
    for node_rank in range(3):
        three_nodes.says(node_rank, b'"event":"step"')
    (victim,) = [process for process in three_nodes.ranks(1) if "runners.engines.pipeline" in process.cmdline()]
    victim.send_signal(signal.SIGKILL)
    ends = three_nodes.ends()
    first = ends[1]
    assert (first.state, first.first_failed_rank, first.is_consequence) == ("failed", 1, False)
    assert "killed by signal 9 (SIGKILL) on rank 1" in first.reason
    for report in (ends[0], ends[2]):
        assert report.state == "cancelled" or (report.state == "failed" and report.is_consequence), report
    for machine in three_nodes.machines:
        wait_for(lambda: not machine.processes(three_nodes.run), "no process is left")  # noqa: B023  called at once


def test_a_script_that_is_killed_ends_the_run_everywhere(three_nodes: Nodes) -> None:
    three_nodes.script(ENDLESS)
    three_nodes.start(over_three())
    for node_rank in range(3):
        three_nodes.says(node_rank, b'"event":"step"')
    supervisor = three_nodes.machines[1].supervisor(three_nodes.run, node_rank=1)
    for script in supervisor.children():
        script.send_signal(signal.SIGKILL)
    ends = three_nodes.ends()
    assert (ends[1].state, ends[1].is_consequence) == ("failed", False)
    assert "SIGKILL" in ends[1].reason
    assert states([ends[0], ends[2]]) == ["cancelled"] * 2


def test_a_killed_supervisor_ends_the_run_everywhere(three_nodes: Nodes) -> None:
    three_nodes.script(ENDLESS)
    three_nodes.start(over_three())
    three_nodes.says(0, b'"event":"step"')
    three_nodes.machines[2].supervisor(three_nodes.run, node_rank=2).kill()
    ends = three_nodes.ends()
    assert ends[2].state == "lost"
    assert "was killed" in ends[2].reason
    assert {report.state for report in ends[:2]} <= {"cancelled", "failed"}
    assert all(report.is_consequence for report in ends[:2] if report.state == "failed")


@pytest.mark.slow
def test_daemons_that_stop_between_prepare_and_go_adopt_the_run(three_nodes: Nodes) -> None:
    three_nodes.script(STEPS)
    three_nodes.prepare(over_three())
    peers = three_nodes.until(three_nodes.peers, "all nodes are prepared")
    for machine in three_nodes.machines:
        machine.daemons[-1].kill()
        machine.daemons[-1].wait()
    three_nodes.go(peers)
    three_nodes.go(peers)  # the server repeats the order
    for machine in three_nodes.machines:
        machine.start_daemon()
    assert states(three_nodes.ends()) == ["finished"] * 3
    assert all(states(three_nodes.reports[node]).count("running") == 1 for node in range(3))


def test_a_prepared_run_can_be_cancelled(three_nodes: Nodes) -> None:
    three_nodes.prepare(over_three())
    three_nodes.until(three_nodes.peers, "all nodes are prepared")
    three_nodes.cancel("node n2 is not prepared")
    ends = three_nodes.ends()
    assert {(report.state, report.reason) for report in ends} == {("cancelled", "node n2 is not prepared")}


@pytest.mark.slow
def test_a_port_taken_between_prepare_and_go_is_named_with_a_remedy(three_nodes: Nodes) -> None:
    three_nodes.prepare(over_three())
    peers = three_nodes.until(three_nodes.peers, "all nodes are prepared")
    with socket.socket() as other:
        # The supervisor holds the reported port until the order to start, so this test names another one.
        other.bind(("", 0))
        other.listen()
        taken = [peer.model_copy(update={"port": other.getsockname()[1]}) for peer in peers]
        three_nodes.go(taken)
        ends = three_nodes.ends()
    assert ends[0].state == "failed"
    assert re.search(r"port \d+ of .* (taken|in use) by another program.*; start", ends[0].reason), ends[0].reason


def test_a_node_without_the_network_that_a_run_asks_for_refuses_it(three_nodes: Nodes) -> None:
    cluster = {"nodes": 3, "device": "cpu", "interface": "10.99.0.0/16"}
    three_nodes.prepare(over_three(cluster=cluster))
    ends = three_nodes.ends()
    assert ends[0].state == "failed"
    assert "cluster.interface 10.99.0.0/16 matches no address of node" in ends[0].reason


def test_heartbeats_name_what_a_node_can_do_and_its_clock(three_nodes: Nodes) -> None:
    three_nodes.until(lambda: len(three_nodes.heartbeats) == 3, "all nodes have sent heartbeats")
    heartbeat = three_nodes.heartbeats["n1"]
    assert heartbeat.abilities is not None
    assert {"pipeline", "megatron"} <= set(heartbeat.abilities.engines)
    assert "command" not in heartbeat.abilities.engines
    assert "torchrun" in heartbeat.abilities.launchers
    assert heartbeat.abilities.addresses[0].address == "127.0.0.3"
    assert heartbeat.abilities.software["torch"]
    assert heartbeat.clock is not None
    assert abs(heartbeat.clock.offset_s) < 5
    assert (heartbeat.lease_s, heartbeat.is_draining) == (None, False)


@pytest.mark.slow
def test_a_drained_node_says_so_until_its_next_daemon(three_nodes: Nodes) -> None:
    machine = three_nodes.machines[0]
    command = [
        sys.executable,
        "-m",
        "runners.node.daemon",
        "drain",
        "--lease",
        "1h",
        "--state-dir",
        str(machine.state_dir),
    ]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE_S)
    drained = three_nodes.until(lambda: next_beat(three_nodes, is_draining=True), "a heartbeat says draining")
    assert drained.lease_s == 3600
    machine.daemons[-1].terminate()
    machine.daemons[-1].wait()
    machine.start_daemon()
    assert three_nodes.until(lambda: next_beat(three_nodes, is_draining=False), "it takes runs").lease_s is None


def next_beat(nodes: Nodes, *, is_draining: bool) -> Heartbeat | None:
    """Return the last heartbeat of the first node, if it drains or not as expected."""
    beat = nodes.heartbeats.get("n0")
    return beat if beat and beat.is_draining is is_draining else None
