"""Launches of several nodes, as processes: what their launchers set is enough for one run."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from parlab.client.launch import launch
from parlab.embedded import free_port
from parlab.lab.models import Run
from parlab.series import store
from tests.client.conftest import Script, ended
from tests.patience import wait_for

MPIRUN = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
STEPS = """
import parlab, sys
with parlab.init("Launch", telemetry=False) as run:
    for step in range(int(sys.argv[1])):
        run.log({"train/loss": step}, step=step)
    if len(sys.argv) > 2:
        sys.stdin.readline()
"""
# Ranks of a training meet at each step: none ends before another one has begun.
TOGETHER = """
import os, parlab, pathlib, sys, time
here = pathlib.Path(__file__).parent
with parlab.init("Launch", telemetry=False) as run:
    (here / f"rank{os.environ['RANK']}").touch()
    while len(list(here.glob("rank*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.05)
    for step in range(int(sys.argv[1])):
        run.log({"train/loss": step}, step=step)
"""
# What each launcher sets for rank {r} of 4 on node {n} of 2, as local rank {l}.
_ADDRESS = "MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"
_TORCH = f"RANK={{r}} WORLD_SIZE=4 {_ADDRESS}"
LAUNCHERS = {
    "torchrun": f"{_TORCH} LOCAL_RANK={{l}} LOCAL_WORLD_SIZE=2 GROUP_RANK={{n}} TORCHELASTIC_RUN_ID=none",
    "PyTorchJob": _TORCH,
    "JobSet": f"{_TORCH} JOBSET_NAME=train JOB_COMPLETION_INDEX={{n}}",
    "Trainer v2": f"{_TORCH} LOCAL_RANK={{l}} LOCAL_WORLD_SIZE=2 GROUP_RANK={{n}} TORCHELASTIC_RUN_ID=none PET_NNODES=2"
    " PET_NPROC_PER_NODE=2 PET_NODE_RANK={n} PET_MASTER_ADDR=10.0.0.1 PET_MASTER_PORT=29400 JOBSET_NAME=train",
    "deepspeed": f"{_TORCH} LOCAL_RANK={{l}} LOCAL_SIZE=2 CROSS_RANK={{n}} CROSS_SIZE=2",
    "Ray": f"{_TORCH} RAY_JOB_ID=01000000 LOCAL_RANK={{l}} LOCAL_WORLD_SIZE=2 NODE_RANK={{n}}",
    "SkyPilot": f"{_TORCH} SKYPILOT_TASK_ID=sky-1_c_1 SKYPILOT_NODE_RANK={{n}} LOCAL_RANK={{l}} LOCAL_WORLD_SIZE=2",
    "PBS": "PBS_JOBID=7.head PALS_APID=9 PMI_RANK={r} PMI_SIZE=4",
    "LSF": "LSB_JOBID=7 JSM_NAMESPACE_RANK={r} JSM_NAMESPACE_SIZE=4 JSM_NAMESPACE_LOCAL_RANK={l}",
    "Flux": "FLUX_JOB_ID=f1 FLUX_TASK_RANK={r} FLUX_JOB_SIZE=4 FLUX_TASK_LOCAL_ID={l}",
    "mpirun": "PMIX_NAMESPACE=prterun-head-7@1 OMPI_COMM_WORLD_RANK={r} OMPI_COMM_WORLD_SIZE=4"
    " OMPI_COMM_WORLD_LOCAL_RANK={l} OMPI_COMM_WORLD_LOCAL_SIZE=2",
    "srun": "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID={r} SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID={l}"
    " SLURM_STEP_TASKS_PER_NODE=2(x2)",
    "torchrun in Slurm": f"{_TORCH} SLURM_JOB_ID=7 SLURM_PROCID={{n}} LOCAL_RANK={{l}} LOCAL_WORLD_SIZE=2"
    " TORCHELASTIC_RUN_ID=none",
}


def variables_of(launcher: str, rank: int) -> dict[str, str]:
    pairs = LAUNCHERS[launcher].format(r=rank, l=rank % 2, n=rank // 2).split()
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_ranks_of_each_launcher_have_an_id_or_a_key_in_common(name: str) -> None:
    places = [launch(variables_of(name, rank)) for rank in range(4)]
    assert [(place.rank, place.world_size) for place in places] == [(rank, 4) for rank in range(4)]
    assert all(place.is_shared for place in places)
    assert len({place.key for place in places}) == 1
    assert places[0].key or len({place.run_id for place in places}) == 1


def test_a_loopback_address_is_another_one_on_each_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    keys = set()
    for host in ("a", "b"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        keys |= {launch({**variables, "MASTER_ADDR": address}).key for address in ("127.0.0.1", "head")}
    assert len(keys) == 3


def rank_of(environ: dict[str, str], rank: int, size: int = 4) -> dict[str, str]:
    own = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    return {**environ, **own}


def steps_of(number: int, rank: int) -> list[int]:
    attempt = Run.objects.get().attempts.get(number=number)
    return [int(step) for step in store.read(attempt.pk, "train/loss", rank=rank).steps]


@pytest.mark.django_db(transaction=True)
def test_four_ranks_that_share_an_address_are_one_run_with_a_series_each(
    environ: dict[str, str], start: Script
) -> None:
    for process in [start(STEPS, rank_of(environ, rank), "5") for rank in range(4)]:
        ended(process)
    assert (Run.objects.get().state, Run.objects.get().attempt_number) == ("finished", 1)
    assert [steps_of(1, rank) for rank in range(4)] == [list(range(5))] * 4


@pytest.mark.django_db(transaction=True)
def test_a_relaunch_after_kill_9_is_the_next_attempt(environ: dict[str, str], start: Script) -> None:
    killed = [start(STEPS, rank_of(environ, rank, 2), "50", "wait") for rank in range(2)]
    wait_for(lambda: Run.objects.exists() and steps_of(1, 0) and steps_of(1, 1), "both ranks report")
    for process in killed:
        process.kill()
        process.wait()
    for process in [start(STEPS, rank_of(environ, rank, 2), "20") for rank in range(2)]:
        ended(process)
    run = Run.objects.get()
    assert (run.state, run.attempt_number) == ("finished", 2)
    assert run.attempts.get(number=1).state == "failed"
    for rank in range(2):
        assert (steps_of(1, rank), steps_of(2, rank)) == (list(range(50)), list(range(20)))


def torchrun(node: int, port: int) -> list[str]:
    address = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    return ["torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(node), *address]


def deepspeed(node: int, port: int) -> list[str]:
    world = base64.urlsafe_b64encode(json.dumps({"a": [0, 1], "b": [0, 1]}).encode()).decode()
    address = ["--master_addr=127.0.0.1", f"--master_port={port}"]
    return ["deepspeed.launcher.launch", f"--world_info={world}", f"--node_rank={node}", "--no_local_rank", *address]


def accelerate(node: int, port: int) -> list[str]:
    address = ["--main_process_ip", "127.0.0.1", "--main_process_port", str(port)]
    size = ["--num_machines", "2", "--num_processes", "4", "--num_cpu_threads_per_process", "1"]
    kind = ["--multi_gpu", "--mixed_precision", "no", "--dynamo_backend", "no"]
    return ["accelerate.commands.launch", *kind, *size, "--machine_rank", str(node), *address]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [torchrun, deepspeed, accelerate])
@pytest.mark.django_db(transaction=True)
def test_two_nodes_of_a_launcher_that_share_an_address_are_one_run(
    environ: dict[str, str], start: Script, tmp_path: Path, launcher: Callable[[int, int], list[str]]
) -> None:
    pytest.importorskip(launcher(0, 0)[0].partition(".")[0])
    script = tmp_path / "train.py"
    script.write_text(TOGETHER)
    source = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_module(sys.argv[0], run_name='__main__')"
    port = free_port()
    nodes = [start(source, environ, *launcher(node, port), str(script), "5") for node in (1, 0)]
    for node in nodes:
        ended(node)
    assert (Run.objects.get().state, Run.objects.get().attempt_number) == ("finished", 1)
    assert [steps_of(1, rank) for rank in range(4)] == [list(range(5))] * 4


@pytest.mark.slow
@pytest.mark.skipif(MPIRUN is None, reason="requires mpirun")
@pytest.mark.django_db(transaction=True)
def test_the_ranks_of_mpirun_are_one_run(environ: dict[str, str], start: Script, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(STEPS)
    source = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    variables = {**environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ended(start(source, variables, str(MPIRUN), "--oversubscribe", "-n", "3", sys.executable, str(script), "5"))
    assert Run.objects.get().state == "finished"
    assert [steps_of(1, rank) for rank in range(3)] == [list(range(5))] * 3
