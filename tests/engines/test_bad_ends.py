"""Real engines that fail under the supervisor: one reason with cause, place and remedy."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.config import RunConfig
from runners.node.launch import launch
from runners.node.rundir import RunDir
from runners.wire.protocol import EVENT_PREFIX
from tests.conftest import SMALL
from tests.patience import wait_for
from tests.runners.supervised import Supervise, Supervised, supervise

__all__ = ["supervise"]
pytestmark = pytest.mark.slow

ENDLESS = SMALL | {"train": SMALL["train"] | {"iterations": 10**6}, "cluster": {"device": "cpu"}}


def prepare(directory: Path, data: dict[str, Any], **limits: Any) -> RunDir:
    """Create a run directory as the daemon does."""
    run = RunDir(directory / "7-1")
    run.path.mkdir()
    config = RunConfig.model_validate(data)
    run.config.write_text(json.dumps(config.resolved()))
    argv = launch.command(config, run.config)
    environment = launch.additions(config, {}, "test:7/1")
    environment.pop("PARLAB_RUN")
    content: dict[str, Any] = {
        "argv": argv,
        "environment": environment,
        "shell": "",
        "timeout_s": 3600,
        "hardware": {"hostname": "n"},
    }
    content["ranks"] = config.world_size if config.starter.starts_ranks else 0
    run.write_launch(content | {"spool_limit_mib": 64, "disk_grace_s": 5, "hang_timeout_s": None, **limits})
    return run


def rank_process(run: Supervised, rank: int) -> psutil.Process:
    """Return the process of a rank that has completed some steps."""
    wait_for(lambda: run.output().count(b'"event":"step"') > 6, "steps are completed")
    return next(process for process in run.training() if process.environ().get("RANK") == str(rank))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_is_named_and_takes_the_others_with_it(
    victim: int, tmp_path: Path, supervise: Supervise
) -> None:
    run = supervise(prepare(tmp_path, ENDLESS))
    rank_process(run, victim).kill()
    final = run.ends()
    assert final.state == "failed"
    host = socket.gethostname()
    assert final.reason.startswith(f"killed by signal 9 (SIGKILL) on rank {victim} of host {host};")
    assert run.training() == []
    streams = run.streams()
    for rank in (0, 1):
        events = [json.loads(line) for line in streams[rank].splitlines() if line.startswith(EVENT_PREFIX)]
        assert {event["rank"] for event in events} == {rank}


def test_a_rank_that_hangs_ends_the_run_with_the_place_of_every_rank(tmp_path: Path, supervise: Supervise) -> None:
    run = supervise(prepare(tmp_path, ENDLESS, hang_timeout_s=10))
    rank_process(run, 1).send_signal(signal.SIGSTOP)
    final = run.ends()
    assert final.state == "failed"
    assert "(launcher.hang_timeout_s 10)" in final.reason
    assert "rank 1 gave no stack (it is stopped)" in final.reason
    # Rank 0 waits for rank 1 at the start of a step, or for a gradient.
    assert "rank 0 waits in barrier" in final.reason or "rank 0 is in take (training/transfers.py" in final.reason
    assert b"parlab: stacks of rank 0, process " in run.output()
    assert "in train_step" in final.traceback
    assert run.training() == []


def test_a_layout_that_does_not_fit_the_processes_is_one_reason(tmp_path: Path, supervise: Supervise) -> None:
    directory = prepare(tmp_path, ENDLESS)
    content = directory.read_launch()
    argv = [argument.replace("--nproc-per-node=2", "--nproc-per-node=3") for argument in content["argv"]]
    directory.write_launch(content | {"argv": argv})
    run = supervise(directory)
    final = run.ends()
    assert final.reason == (
        "parallel.pipeline_parallel_size: 2 stages need 2 processes, but 3 were started;"
        " use torchrun --nproc-per-node 2, or 3 stages"
    )
    assert run.output().count(b'"event":"refused"') == 1


def test_a_missing_deepspeed_is_the_reason_of_the_run(tmp_path: Path, supervise: Supervise) -> None:
    (tmp_path / "deepspeed.py").write_text("raise ImportError('there is none here')")
    data = {"model": SMALL["model"], "parallel": {"engine": "zero"}, "cluster": {"device": "cpu"}}
    directory = prepare(tmp_path, data)
    content = directory.read_launch()
    path = f"{tmp_path}:{content['environment']['PYTHONPATH']}"
    directory.write_launch(content | {"environment": content["environment"] | {"PYTHONPATH": path}})
    final = supervise(directory).ends()
    assert final.reason == (
        "parallel.engine: engine zero requires DeepSpeed, but importing it failed: there is none here;"
        " pip install 'parlab[node]' on the node, or use another engine"
    )


def test_a_mapped_gpu_that_does_not_exist_is_the_reason(tmp_path: Path, supervise: Supervise) -> None:
    mapping = {f"stage_{n}": {"shard_0": f"GPU:{n + 7000}"} for n in range(2)}
    data = {
        "model": SMALL["model"],
        "train": {"global_batch_size": 1, "micro_batch_size": 1},
        "parallel": {"engine": "sharding"},
        "sharding": {"stage_cnt": 2, "device_mapping": mapping},
    }
    final = supervise(prepare(tmp_path, data)).ends()
    assert final.reason.startswith("sharding.device_mapping: device GPU:7000 does not exist, this machine has ")
