"""Errors of the rendezvous and of ranks that share a GPU name address or device, and the remedy."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore

from runners.config import ConfigError
from runners.engines.process.rendezvous import check_that_devices_differ, meet

SHORT = timedelta(seconds=2)


def test_a_port_in_use_is_reported_with_the_flag_that_set_it() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError) as raised:
            meet(f"tcp://127.0.0.1:{port}", 0, 1, SHORT)
    (problem,) = raised.value.problems
    assert (problem.field, problem.value) == ("--dist-url", str(port))
    assert problem.message.startswith(f"port {port} of 127.0.0.1 is in use by another program")
    assert "use another port" in problem.message


def test_a_port_in_use_is_reported_with_the_launchers_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as server:
        port = str(server.getsockname()[1])
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "1"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError) as raised:
            meet("env://", 0, 1, SHORT)
    assert [(problem.field, problem.value) for problem in raised.value.problems] == [("MASTER_PORT", port)]


@pytest.mark.slow
def test_a_rank_that_cannot_reach_rank_0_reports_the_address() -> None:
    # Bound but not listening: connections are refused, and no other process can take the port.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(ConfigError) as raised:
            meet(f"tcp://127.0.0.1:{port}", 1, 2, SHORT)
    message = raised.value.problems[0].message
    assert f"rank 1 could not reach rank 0 at 127.0.0.1:{port} within 2 s" in message
    assert "check that rank 0 is running" in message


def check(devices: list[str]) -> list[str]:
    """Compare the devices of as many ranks; return each rank's error message, "" without an error."""
    store = HashStore()

    def message(rank: int) -> str:
        try:
            check_that_devices_differ(store, rank, len(devices), devices[rank], f"cuda:{rank}")
        except ConfigError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(devices)) as pool:
        return list(pool.map(message, range(len(devices))))


def test_ranks_with_different_gpus_are_accepted() -> None:
    assert check(["n1 gpu-a", "n1 gpu-b", "n2 gpu-a"]) == ["", "", ""]


def test_two_ranks_with_one_gpu_are_refused_on_every_rank() -> None:
    for rank, message in enumerate(check(["n1 gpu-a", "n1 gpu-b", "n1 gpu-a"])):
        assert message.startswith("cluster.device: ranks 0 and 2 both use GPU gpu-a of n1")
        assert f"(cuda:{rank} on rank {rank})" in message
        assert "use fewer ranks, or use cluster.device cpu" in message


def test_rank_0_keeps_the_store_until_the_others_have_read_the_shared_gpu() -> None:
    store = HashStore()
    store.set("device/1", "n1 gpu-a")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(check_that_devices_differ, store, 0, 2, "n1 gpu-a", "cuda:0")
        assert not wait([first], timeout=0.5).done, "rank 1 could not read the store any more"
        with pytest.raises(ConfigError):
            check_that_devices_differ(store, 1, 2, "n1 gpu-a", "cuda:0")
        with pytest.raises(ConfigError):
            first.result()


def test_rank_0_refuses_without_a_rank_that_has_died() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=0.2))
    store.set("device/1", "n1 gpu-a")
    with pytest.raises(ConfigError):
        check_that_devices_differ(store, 0, 2, "n1 gpu-a", "cuda:0")
