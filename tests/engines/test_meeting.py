"""Ranks that cannot meet, or that were given one GPU, are told which address or device and what to do."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore

from runners.config import ConfigError
from runners.engines.meeting import check_that_devices_differ, meet

SHORT = timedelta(seconds=2)


def test_a_port_in_use_is_named_with_the_flag_that_chose_it() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as raised:
            meet(f"tcp://127.0.0.1:{port}", 0, 1, SHORT)
    (problem,) = raised.value.problems
    assert (problem.field, problem.value) == ("--dist-url", str(port))
    assert problem.message.startswith(f"port {port} of 127.0.0.1 is in use by another program")
    assert "use another port" in problem.message


def test_a_port_in_use_that_a_launcher_chose_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "1"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError) as raised:
            meet("env://", 0, 1, SHORT)
    assert [(problem.field, problem.value) for problem in raised.value.problems] == [("MASTER_PORT", port)]


def test_a_rank_that_finds_nobody_says_where_it_looked() -> None:
    # Bound but not listening: connections are refused, and no other process can take the port.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(ConfigError) as raised:
            meet(f"tcp://127.0.0.1:{port}", 1, 2, SHORT)
    message = raised.value.problems[0].message
    assert f"rank 1 did not find rank 0 at 127.0.0.1:{port} within 2 s" in message
    assert "see that rank 0 runs" in message


def check(devices: list[str]) -> list[str]:
    """Have as many ranks as devices compare them; returns what each was told, nothing where all is well."""
    store = HashStore()

    def one(rank: int) -> str:
        try:
            check_that_devices_differ(store, rank, len(devices), devices[rank], f"cuda:{rank}")
        except ConfigError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(devices)) as pool:
        return list(pool.map(one, range(len(devices))))


def test_ranks_with_a_gpu_each_go_on() -> None:
    assert check(["n1 gpu-a", "n1 gpu-b", "n2 gpu-a"]) == ["", "", ""]


def test_two_ranks_with_one_gpu_are_told_so_on_every_rank() -> None:
    for rank, told in enumerate(check(["n1 gpu-a", "n1 gpu-b", "n1 gpu-a"])):
        assert told.startswith("cluster.device: ranks 0 and 2 were both given GPU gpu-a of n1")
        assert f"(cuda:{rank} on rank {rank})" in told
        assert "use fewer ranks, or cluster.device cpu" in told
