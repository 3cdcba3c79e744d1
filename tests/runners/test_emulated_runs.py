"""Whole runs behind links, as a node starts and ends them; they import torch, so they are slow."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from runners.config import RunConfig
from runners.links.ability import ability
from tests.conftest import SMALL
from tests.engines.ranks import train_in_one_process
from tests.engines.started import run_behind_links
from tests.patience import wait_for

from .conftest import NodeMachine, Server

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(ability().why_not), reason=ability().why_not)]

LINKS = {"apply": "emulate", "delay_ms": 5, "bandwidth_gbps": 0.5}
WAITING = {
    **SMALL,
    "train": {**SMALL["train"], "compute": "emulated", "iterations": 3},
    "emulation": {"forward_ms": 10, "backward_ms": 20},
    "network": LINKS,
}
REAL = {**SMALL, "network": LINKS}


def run_links(config: dict[str, Any], directory: Path) -> list[dict[str, Any]]:
    """Run a configuration to its end and return its events."""
    return [
        json.loads(line) for line in run_behind_links(config, directory).splitlines() if line.startswith('{"parlab":')
    ]


def namespaces_of(processes: list[psutil.Process]) -> set[str]:
    namespaces = set()
    for process in processes:
        try:
            namespaces.add(os.readlink(f"/proc/{process.pid}/ns/net"))
        except OSError:
            continue
    return namespaces


def test_stages_that_wait_take_their_time_and_links_theirs(tmp_path: Path) -> None:
    events = run_links(WAITING, tmp_path)
    links = [event for event in events if event["event"] == "link"]
    assert {(link["source"], link["target"]) for link in links} == {(0, 1), (1, 0)}
    for link in links:
        assert link["round_trip_s"] >= 0.010
        assert link["measured_bits_per_s"] < 0.55e9
    steps = [event for event in events if event["event"] == "step"]
    assert len(steps) == 6
    # Four micro batches of 30 ms, the first of which comes and goes over a link of 5 ms.
    slowest = max(event["step_time_s"] for event in steps if event["step"] == 3)
    assert slowest >= 4 * 0.030 + 0.030 + 2 * 0.005
    assert not [event for event in steps if "loss" in event]


def test_a_training_that_computes_learns_the_same_behind_slow_links(tmp_path: Path) -> None:
    behind = [event["loss"] for event in run_links(REAL, tmp_path) if "loss" in event]
    alone = train_in_one_process(RunConfig.model_validate(SMALL), 4, torch.device("cpu"))
    assert behind == pytest.approx(alone.losses, rel=1e-5)


def test_nodes_of_several_ranks_live_on_one_machine(tmp_path: Path) -> None:
    model = {**SMALL["model"], "num_layers": 4}
    data = {**WAITING, "model": model, "parallel": {"pipeline_parallel_size": 4}, "cluster": {"nodes": 2}}
    events = run_links(data, tmp_path)
    assert {(link["source"], link["target"]) for link in events if link["event"] == "link"} == {(0, 1), (1, 0)}
    assert {event["rank"] for event in events if event["event"] == "end"} == {0, 1, 2, 3}


@pytest.mark.parametrize("how", ["cancel", "supervisor killed"])
def test_nothing_is_left_of_a_run_that_is_cancelled_or_whose_supervisor_is_killed(
    how: str, machine: NodeMachine, server: Server
) -> None:
    before = namespaces_of(list(psutil.process_iter()))
    machine.start_daemon("runners.node.daemon")
    endless = {**WAITING, "train": {**WAITING["train"], "iterations": 100_000}}
    server.start(1, config=endless)
    server.until(lambda: b'"event":"step"' in server.output[1, 1], "it trains")
    mine = namespaces_of(machine.processes(1)) - before
    assert len(mine) == 2
    if how == "cancel":
        server.cancel(1)
    else:
        machine.supervisor(1).kill()
    wait_for(lambda: not machine.processes(1), "all processes have ended")
    assert server.end_of(1).state == ("cancelled" if how == "cancel" else "lost")
    assert not mine & namespaces_of(list(psutil.process_iter()))


def test_a_run_ends_at_once_when_what_carries_its_packets_is_killed(machine: NodeMachine, server: Server) -> None:
    machine.start_daemon("runners.node.daemon")
    server.start(1, config={**WAITING, "train": {**WAITING["train"], "iterations": 100_000}})
    server.until(lambda: b'"event":"step"' in server.output[1, 1], "it trains")
    (carrier,) = [process for process in machine.processes(1) if "runners.links.forwarder" in process.cmdline()]
    carrier.kill()
    report = server.end_of(1)
    assert report.state == "failed"
    assert "the process that forwards packets between ranks was killed" in report.reason


def test_a_rank_that_fails_ends_the_run_and_is_named(machine: NodeMachine, server: Server) -> None:
    machine.start_daemon("runners.node.daemon")
    server.start(1, config={**WAITING, "emulation": {"source_run": "nobody/1"}})
    report = server.end_of(1)
    assert report.state == "failed"
    assert "emulation.forward_ms is empty; set it" in report.reason
