"""From a configuration to a command, its environment and a line that a person can paste."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runners.config import RunConfig
from runners.node.launch.launch import additions, command, shell_line
from runners.node.run_as import SECRETS, without_secrets
from tests.conftest import SMALL


def test_torchrun_starts_one_process_per_rank_on_this_machine_only() -> None:
    argv = command(RunConfig.model_validate(SMALL), Path("/runs/1-1/config.json"))
    assert argv[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert {"--nnodes=1", "--nproc-per-node=2", "--standalone"} < set(argv)
    assert argv[-4:] == ["-m", "runners.engines.pipeline", "--config", "/runs/1-1/config.json"]


def test_plain_starts_the_engine_alone() -> None:
    config = RunConfig.model_validate({"launcher": {"kind": "plain"}})
    argv = command(config, Path("config.json"))
    assert argv == [sys.executable, "-m", "runners.engines.pipeline", "--config", "config.json"]


def test_a_run_over_two_nodes_that_the_server_sent_to_one_is_refused() -> None:
    config = RunConfig.model_validate({**SMALL, "cluster": {"nodes": 2}})
    with pytest.raises(ValueError, match=r"cluster\.nodes 2: .* 1 node"):
        command(config, Path("config.json"))


def test_a_run_gets_its_threads_and_marker_and_keeps_what_the_node_set() -> None:
    config = RunConfig.model_validate({**SMALL, "launcher": {"threads_per_rank": 3}})
    added = additions(config, {"PYTHONPATH": "/own", "GLOO_SOCKET_IFNAME": "eth1", "NCCL_DEBUG": "INFO"}, "id:1/1")
    assert added["OMP_NUM_THREADS"] == "3"
    assert added["PARLAB_RUN"] == "id:1/1"
    assert added["PYTHONPATH"].endswith(":/own")
    assert added["GLOO_SOCKET_IFNAME"] == "eth1"
    assert not [name for name in added if name.startswith(("NCCL", "CUDA"))]


def test_secrets_do_not_reach_the_training() -> None:
    base = {**dict.fromkeys(SECRETS, "secret"), "HOME": "/root"}
    assert without_secrets(base) == {"HOME": "/root"}


def test_the_line_for_a_person_does_in_a_shell_what_the_node_does(tmp_path: Path) -> None:
    script = tmp_path / "it's here.py"
    script.write_text("import os, sys; print(os.environ['GREETING'], sys.argv[1:], 'PARLAB_RUN' in os.environ)")
    line = shell_line([sys.executable, str(script), "a b"], {"GREETING": "good $day", "PARLAB_RUN": "id:1/1"})
    environment = {name: value for name, value in os.environ.items() if name != "PARLAB_RUN"}
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment)
    assert done.stdout == "good $day ['a b'] False\n"
