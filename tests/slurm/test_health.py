"""Bad nodes of a real Slurm: excluded from jobs, found before the ranks start, and drained by the shipped check."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import wait_for
from tests.runners.conftest import NVML, ROOT, Server
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import WAITS, AttentiveServer, Jobs, LoginNode, config

HEALTH = ROOT / "deploy" / "slurm" / "health.sh"
BAD_GPU: dict[str, Any] = {"name": "H100", "uuid": "GPU-0", "memory": 1 << 36, "ecc_errors": 3}


def test_a_job_does_not_use_nodes_that_are_excluded(login: LoginNode, server: Server, jobs: Jobs) -> None:
    run = jobs.begin(exclude="n[1-2]")
    jobs.until_started(run)
    assert server.reports[run, 1][0].environment["slurm"]["node"] == "n3"
    login.open(run)
    assert server.end_of(run).state == "finished"


@pytest.fixture
def broken(cluster: Cluster, tmp_path: Path, redis_url: str) -> Iterator[LoginNode]:
    """A login node whose jobs find a GPU with a fault on their node."""
    login = LoginNode(cluster.home / tmp_path.name, redis_url, cluster)
    login.environment |= {"PYTHONPATH": str(NVML), "FAKE_GPUS": json.dumps([BAD_GPU])}
    yield login
    print(login.log.read_text()[-4000:])
    login.clear()
    assert not login.close()


@pytest.mark.slow
def test_a_fault_of_a_compute_node_is_found_before_its_ranks_start(broken: LoginNode, redis_url: str) -> None:
    server = AttentiveServer(redis_url)
    broken.script(1, WAITS)
    broken.start_daemon()
    server.start(1, config=config())
    server.until(lambda: server.reports[1, 1] and server.reports[1, 1][-1].is_final, "the run has ended")
    end = server.reports[1, 1][-1]
    assert end.state == "lost"
    node = end.environment["slurm"]["node"]
    assert end.reason == (
        f"node {node} failed its health check: GPU 0: 3 uncorrectable ECC errors since its driver was loaded;"
        " later jobs leave it out"
    )
    assert b"started" not in server.output[1, 1]
    server.close()


def variables(tmp_path: Path, *gpus: dict[str, Any]) -> dict[str, str]:
    """Return what the check needs to see only these GPUs."""
    return {
        "PARLAB_PYTHON": sys.executable,
        "PARLAB_HEALTH_STATE": str(tmp_path / "links.json"),
        "PARLAB_HEALTH_OPTIONS": f"--kernel-log {tmp_path}/none --rdma {tmp_path}/none",
        "PYTHONPATH": os.pathsep.join([str(NVML), str(ROOT)]),
        "FAKE_GPUS": json.dumps(gpus),
    }


def check(cluster: Cluster, tmp_path: Path, *gpus: dict[str, Any]) -> tuple[int, float]:
    """Run the check for node n2; return its exit code and the seconds that it took."""
    begun = time.monotonic()
    environment = {**cluster.environment, "SLURMD_NODENAME": "n2", **variables(tmp_path, *gpus)}
    done = subprocess.run(["sh", str(HEALTH)], check=False, env=environment, timeout=60)
    return done.returncode, time.monotonic() - begun


def shown(cluster: Cluster, node: str = "n2") -> str:
    return cluster.run("scontrol", "show", "node", "--oneliner", node)


@pytest.mark.slow
def test_a_run_is_lost_and_not_cancelled_if_the_check_drains_its_node_as_prolog(
    login: LoginNode, server: Server, cluster: Cluster, jobs: Jobs, tmp_path: Path
) -> None:
    given = {**variables(tmp_path, BAD_GPU), "SLURM_CONF": str(cluster.conf)}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in given.items()]
    prolog = cluster.root / "prolog.sh"
    prolog.write_text("\n".join(["#!/bin/sh", '[ "$SLURMD_NODENAME" = n1 ] || exit 0', *lines, f"exec sh {HEALTH}\n"]))
    prolog.chmod(0o755)
    try:
        with cluster.settings(f"Prolog={prolog}"):
            run = jobs.begin(exclude="n[2-3]")
            end = server.end_of(run)
            wait_for(lambda: "DRAIN" in shown(cluster, "n1"), "n1 is drained")
            other = jobs.begin()
            jobs.until_started(other)
    finally:
        cluster.run("scontrol", "update", "NodeName=n1", "State=RESUME")
    assert end.state == "lost", end.reason
    assert "before its supervisor started: drained meanwhile: n1 (parlab: GPU 0: 3 uncorrectable ECC" in end.reason
    login.open(other)
    assert server.end_of(other).state == "finished"


@pytest.mark.slow
def test_the_shipped_check_drains_a_node_with_a_fault_and_its_reason(cluster: Cluster, tmp_path: Path) -> None:
    healthy = {**BAD_GPU, "ecc_errors": 0}
    assert check(cluster, tmp_path, healthy)[0] == 0
    assert "DRAIN" not in shown(cluster)
    try:
        code, seconds = check(cluster, tmp_path, BAD_GPU)
        assert (code, seconds < 20) == (1, True)
        wait_for(lambda: "DRAIN" in shown(cluster), "n2 is drained")
        assert "Reason=parlab: GPU 0: 3 uncorrectable ECC errors" in shown(cluster)
    finally:
        cluster.run("scontrol", "update", "NodeName=n2", "State=RESUME")
    wait_for(lambda: "DRAIN" not in shown(cluster), "n2 takes jobs again")
