"""A launcher of all nodes without the others, and a start that never comes: each ends with a reason and its remedy."""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path

import pytest

from runners.node.launch import ranks, span
from runners.node.launch.ports import REFUSED
from runners.node.launch.share import Share
from runners.node.launch.span_node import DEATHS, ENVIRONMENT, RUN_DIRECTORY
from runners.node.rundir import RunDir
from runners.supervisor.verdict import Evidence, Verdict
from runners.wire.protocol import RunState
from tests.patience import PATIENCE_S
from tests.runners.supervised import Supervise, supervise

__all__ = ["supervise"]

TWO = Share(0, 2, "127.0.0.2", "lo", ("127.0.0.2", "127.0.0.3"), 0)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Share:
    """The share of the first of two nodes, in its run directory."""
    monkeypatch.chdir(tmp_path)
    return TWO._replace(port=free_port())


def verdict(output: str, code: int) -> Verdict:
    evidence = Evidence()
    evidence.see(output.encode())
    return evidence.verdict(code)


def test_a_node_that_does_not_reach_the_first_one_is_named_with_a_remedy(
    share: Share, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(span, "MEET_WITHIN_S", 0.1)
    code = span.First(["mpirun"], share).run()
    reason = verdict(capfd.readouterr().out, code).reason
    assert reason.startswith("node 1 (127.0.0.3) did not connect to the first node at 127.0.0.2, port ")
    assert "set cluster.interface to a network between them" in reason


def test_a_first_node_that_does_not_answer_is_named_with_a_remedy(
    share: Share, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(span, "MEET_WITHIN_S", 0.1)
    code = span.Other(share._replace(node_rank=1, address="127.0.0.3")).run()
    reason = verdict(capfd.readouterr().out, code).reason
    assert reason.startswith(f"the first node of the run did not answer at 127.0.0.2, port {share.port}")
    assert "open the ports of the firewall" in reason


def test_a_port_that_another_program_took_is_named_with_a_remedy(
    share: Share, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.2", share.port)):
        assert span.First(["mpirun"], share).run() == REFUSED
    reason = verdict(capfd.readouterr().out, REFUSED).reason
    assert f"port {share.port} of 127.0.0.2 was taken by another program between prepare and start" in reason
    assert "start the run again" in reason


@pytest.mark.parametrize(
    ("script", "first", "other"),
    [
        ("exit(0)", RunState.FINISHED, RunState.FINISHED),
        ("exit(3)", RunState.FAILED, RunState.FAILED),
    ],
)
def test_both_nodes_end_with_the_launcher_and_the_other_one_as_a_consequence(
    share: Share, script: str, first: RunState, other: RunState, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    codes: dict[int, int] = {}
    second = span.Other(share._replace(node_rank=1, address="127.0.0.3"))
    second.directory = tmp_path / "second"
    second.directory.mkdir()
    thread = threading.Thread(target=lambda: codes.update({1: second.run()}))
    thread.start()
    codes[0] = span.First([sys.executable, "-c", script], share).run()
    thread.join(PATIENCE_S)
    output = capfd.readouterr().out
    assert verdict("", codes[0]).state is first
    ended = verdict(output, codes[1])
    assert (ended.state, ended.is_consequence) == (other, other is RunState.FAILED)
    assert json.loads((second.directory / ENVIRONMENT).read_text())[RUN_DIRECTORY] == str(second.directory)


def test_a_rank_under_srun_takes_the_variables_of_its_own_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "7-1", tmp_path / "7-1-1"
    for directory in (first, second):
        directory.mkdir()
        variables = {RUN_DIRECTORY: str(directory), DEATHS: str(directory / "deaths")}
        (directory / ENVIRONMENT).write_text(json.dumps(variables))
    inherited = {**TWO.to_environment(), RUN_DIRECTORY: str(first), "SLURM_PROCID": "3"}
    monkeypatch.chdir(tmp_path)
    own = ranks.enter_node(inherited, local_size=2)
    assert own[DEATHS] == str(second / "deaths")
    assert Path.cwd() == second


def test_a_run_that_is_prepared_but_never_told_to_start_ends_within_its_time(
    tmp_path: Path, supervise: Supervise
) -> None:
    run = RunDir(tmp_path / "7-1-1")
    run.path.mkdir()
    launch = {
        "environment": {},
        "share": TWO._replace(node_rank=1, address="127.0.0.3")._asdict(),
        "go_within_s": 0.2,
        "timeout_s": 3600,
        "hardware": {"hostname": "here"},
        "spool_limit_mib": 64,
        "disk_grace_s": 5,
    }
    run.write_launch(launch)
    end = supervise(run).ends()
    assert end.state == "lost"
    assert end.reason == (
        "prepared, but not told to start within 0.2 s; check the other nodes of the run, the server and its Redis"
    )
