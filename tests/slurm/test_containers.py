"""A container in a job of a real Slurm, which knows only those of its processes that are descendants of the job."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from runners.node.launch import containers
from tests.conftest import SMALL
from tests.patience import wait_for
from tests.runners.test_containers import MOUNTS, PYTHON, container_names, needs_podman, podman, root_directory
from tests.slurm.cluster import SBIN, Cluster
from tests.slurm.conftest import AttentiveServer, LoginNode

__all__ = ["podman", "root_directory"]


@needs_podman
@pytest.mark.slow
def test_a_killed_supervisor_in_a_job_leaves_no_container(
    cluster: Cluster, redis_url: str, root_directory: Path, tmp_path: Path
) -> None:
    login = LoginNode(cluster.home / tmp_path.name, redis_url, cluster)
    login.environment |= {"TEST_SCRIPTS": "", "PATH": f"{os.environ['PATH']}:{SBIN}"}
    login.options = ("--images", str(root_directory.parent), "--mounts", "/", "--slots", "2")
    login.start_daemon()
    server = AttentiveServer(redis_url)
    container = {"runtime": "podman", "image": str(root_directory), "python": str(PYTHON), "mounts": MOUNTS}
    train = {**SMALL["train"], "iterations": 1_000_000}
    run = 1
    try:
        server.start(run, config={**SMALL, "train": train, "launcher": {"container": container, "timeout_s": 600}})
        server.until(lambda: server.output[run, 1].count(b'"event":"step"') > 10, "the ranks train")
        name = containers.container_name(login.state.marker(login.run_dir(run)))
        assert name in container_names()
        login.supervisor(run).send_signal(signal.SIGKILL)
        end = server.end_of(run)
        assert end.state == "lost", end.reason
        assert "its supervisor was killed" in end.reason
        wait_for(lambda: not login.processes(run), "no process of the run is left")
        assert name not in container_names()
    finally:
        server.close()
        print(login.log.read_text()[-8000:])
        login.clear()
        assert not login.close()
