"""What each of several nodes is asked to start: arguments, variables, addresses, and who is to blame at the end."""

from __future__ import annotations

import json
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.config import RunConfig, check
from runners.node.addresses import AddressError, address_towards, check_own, choose, held_port, local_addresses
from runners.node.clocks import ClockOffset
from runners.node.daemon_settings import read_duration
from runners.node.launch import span_node
from runners.node.launch.launch import additions, check_span, command
from runners.node.launch.share import Share, hostfile
from runners.supervisor.shipping import BrokerAway
from runners.supervisor.verdict import Evidence, Verdict
from tests.conftest import SMALL

SECOND = Share(1, 2, "10.0.0.2", "ib0", ("10.0.0.1", "10.0.0.2"), 4711)


def over_two(**sections: Any) -> RunConfig:
    data = {**SMALL, "parallel": {"pipeline_parallel_size": 2}, "cluster": {"nodes": 2}, **sections}
    return RunConfig.model_validate(data)


def test_torchrun_starts_the_ranks_of_its_own_node_only() -> None:
    argv = command(over_two(), Path("config.json"), SECOND)
    expected = {"--nnodes=2", "--node-rank=1", "--nproc-per-node=1", "--master-addr=10.0.0.1", "--master-port=4711"}
    assert expected < set(argv)
    assert "--local-addr=10.0.0.2" in argv
    assert "--standalone" not in argv


def test_deepspeed_starts_the_ranks_of_its_own_node_without_ssh() -> None:
    argv = command(over_two(launcher={"kind": "deepspeed"}), Path("config.json"), SECOND)
    assert {"--hostfile=hostfile", "--no_ssh", "--node_rank=1", "--master_port=4711"} < set(argv)
    assert hostfile(SECOND, 4) == "10.0.0.1 slots=4\n10.0.0.2 slots=4\n"


def test_gloo_and_nccl_get_the_interface_that_the_run_or_the_owner_of_the_node_chose() -> None:
    added = additions(over_two(), {}, "id:1/1", SECOND)
    assert (added["GLOO_SOCKET_IFNAME"], added["NCCL_SOCKET_IFNAME"]) == ("ib0", "ib0")
    assert (added["MASTER_ADDR"], added["MASTER_PORT"], added["NODE_RANK"], added["NNODES"]) == (
        *("10.0.0.1", "4711", "1", "2"),
    )
    assert Share.from_environment(added) == SECOND
    owned = additions(over_two(), {"NCCL_SOCKET_IFNAME": "eth1"}, "id:1/1", SECOND)
    assert (owned["GLOO_SOCKET_IFNAME"], owned["NCCL_SOCKET_IFNAME"]) == ("ib0", "eth1")
    chosen = over_two(cluster={"nodes": 2, "interface": "ib0"})
    assert additions(chosen, {"NCCL_SOCKET_IFNAME": "eth1"}, "id:1/1", SECOND)["NCCL_SOCKET_IFNAME"] == "ib0"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"launcher": {"kind": "srun"}, "parallel": {"pipeline_parallel_size": 2}},
            r"launcher\.kind srun starts ranks on 2 nodes only within one job of Slurm.*; use torchrun, deepspeed",
        ),
        (
            {"parallel": {"engine": "capacity", "pipeline_parallel_size": 2}},
            r"cluster\.nodes 2: engine capacity runs on one node; use 1, or pipeline",
        ),
    ],
)
def test_what_cannot_span_nodes_is_refused_with_a_remedy(sections: dict[str, Any], message: str) -> None:
    config, _ = check({**SMALL, "cluster": {"nodes": 2}, **sections})
    if config is None:
        pytest.fail("the configuration itself is valid")
    with pytest.raises(ValueError, match=message):
        check_span(config, 2, is_slurm=False)


@pytest.mark.parametrize("kind", ["mpirun", "srun"])
def test_a_launcher_of_all_nodes_is_called_with_all_ranks_and_a_path_that_each_node_has(kind: str) -> None:
    argv = command(over_two(launcher={"kind": kind}), Path("/state/runs/1-1-1/config.json"), SECOND)
    assert argv[1:3] == ["-m", "runners.node.launch.span"]
    assert argv[-4:] == ["-m", "runners.engines.pipeline", "--config", "config.json"]
    assert "-np 2" in shlex.join(argv) or "--ntasks=2" in argv


def test_mpirun_knows_nodes_by_names_that_are_no_addresses_of_a_machine() -> None:
    assert span_node.label_file(SECOND, 4) == "240.0.0.0 slots=4\n240.0.0.1 slots=4\n"
    assert [span_node.labelled_rank(span_node.node_label(number)) for number in (0, 255, 256, 70_000)] == [
        0,
        255,
        256,
        70_000,
    ]
    with pytest.raises(ValueError, match=r"example\.org is not a node of this run"):
        span_node.labelled_rank("example.org")


def test_only_the_daemon_of_mpirun_is_started_from_the_line_of_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_node, "installed", lambda program: f"/opt/mpi/bin/{program}")
    line = 'PRTE_PREFIX=/elsewhere;export PRTE_PREFIX;/elsewhere/bin/prted --prtemca plm "ssh" --tree'
    argv, variables = span_node.daemon_command(line)
    assert argv == ["/opt/mpi/bin/prted", "--prtemca", "plm", "ssh", "--tree"]
    assert variables["PRTE_PREFIX"] == "/opt/mpi"
    assert span_node.daemon_command(" orted -mca ess env")[0] == ["/opt/mpi/bin/orted", "-mca", "ess", "env"]
    with pytest.raises(ValueError, match="not a daemon of mpirun: rm -rf /"):
        span_node.daemon_command("rm -rf /")


@pytest.mark.parametrize("value", ["eth0", "ib0.8001", "10.0.0.0/24", "fd00::/8"])
def test_an_interface_is_a_name_or_a_subnet(value: str) -> None:
    assert over_two(cluster={"nodes": 2, "interface": value}).cluster.interface == value


@pytest.mark.parametrize("value", ["", "eth 0", "10.0.0.0/99", "a-name-that-is-too-long-for-linux"])
def test_an_invalid_interface_names_field_value_and_remedy(value: str) -> None:
    _, (problem,) = check({"cluster": {"interface": value}})
    assert problem.field == "cluster.interface"
    assert json.dumps(value) in problem.message
    assert "like eth0, or a subnet, like 10.0.0.0/24" in problem.message


def test_a_node_takes_its_own_address_or_that_in_the_network_of_the_run() -> None:
    assert choose(None, "127.0.0.7") == ("127.0.0.7", "lo")
    assert choose("lo", "127.0.0.7") == ("127.0.0.7", "lo")
    assert choose("127.0.0.0/8", "10.9.9.9").interface == "lo"
    assert "127.0.0.1" in {entry.address for entry in local_addresses()}
    with pytest.raises(AddressError, match=r"cluster\.interface ib7 matches no address of node .* use the name of an"):
        choose("ib7", "127.0.0.7")
    with pytest.raises(AddressError, match=r"address 192\.0\.2\.250 is not one of this machine"):
        check_own("192.0.2.250")
    assert address_towards("redis://:secret@127.0.0.1:6379/0") == "127.0.0.1"
    assert address_towards("redis+unix:///run/redis.sock") == "127.0.0.1"


def test_a_held_port_cannot_be_taken_and_is_free_afterwards() -> None:
    holder = held_port("127.0.0.5")
    port = holder.getsockname()[1]
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.5", port))
    holder.close()
    with socket.socket() as after:
        after.bind(("127.0.0.5", port))


def test_the_clock_offset_is_that_of_the_shortest_round_trip() -> None:
    answers: Iterator[float | BrokerAway] = iter([1.0, BrokerAway("away")])

    def server_time() -> float:
        answer = next(answers)
        if isinstance(answer, BrokerAway):
            raise answer
        return answer

    clock = ClockOffset(server_time)
    first = clock.measured()
    assert first is not None
    assert first.offset_s > 1e9
    assert clock.measured() == first


@pytest.mark.parametrize(("text", "seconds"), [("", None), ("90", 90), ("90s", 90), ("15m", 900), ("1h", 3600)])
def test_a_lease_has_a_unit(text: str, seconds: float | None) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["1", "5s", "9d", "an hour", "-1h"])
def test_an_invalid_lease_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid --lease .*; use 30s or more, at most 7d"):
        read_duration(text)


def ended_with(output: str) -> Verdict:
    evidence = Evidence()
    evidence.see(output.encode())
    return evidence.verdict(1)


def traceback_of(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    step()\n{error}\n'


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4711",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
    ],
)
def test_an_error_because_another_node_went_away_is_a_consequence(error: str) -> None:
    assert ended_with(traceback_of(error)).is_consequence


def test_an_error_of_the_training_is_a_cause_and_names_its_rank() -> None:
    event = {"parlab": 1, "t": 1, "rank": 5, "event": "error", "traceback": traceback_of("ValueError: no good")}
    verdict = ended_with(json.dumps(event, separators=(",", ":")) + "\n")
    assert (verdict.rank, verdict.is_consequence) == (5, False)


def test_a_first_node_that_nobody_reaches_is_named_with_a_remedy() -> None:
    error = (
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to"
        " (10.0.0.1, 4711)."
    )
    verdict = ended_with(traceback_of(error))
    assert "did not answer at 10.0.0.1, port 4711; open the ports of the firewall" in verdict.reason
    assert not verdict.is_consequence
