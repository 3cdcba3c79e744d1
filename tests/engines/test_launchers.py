"""mpirun, srun and DeepSpeed's launcher start real ranks of parlab's engines and of the team's own commands."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from runners.config import RunConfig
from runners.node.abilities import ALLOWED_COMMANDS
from runners.node.launch import launch, ports, ranks
from runners.supervisor.verdict import Evidence
from runners.wire.protocol import Report
from tests.conftest import SMALL
from tests.engines.test_bad_ends import prepare
from tests.patience import wait_for
from tests.runners.supervised import Supervise, supervise

__all__ = ["supervise"]

MPIRUN = pytest.mark.skipif(
    shutil.which("mpirun", path=str(Path(sys.executable).parent)) is None,
    reason="no mpirun next to this Python: install requirements-dev.txt",
)
# Behaves like srun of Slurm 23.11 on one node, according to its manual: start the tasks with their variables, report a
# failed task, end the others, and return the highest exit code.
SRUN = r"""#!PYTHON
import os, subprocess, sys, time
options = dict(argument.lstrip("-").split("=") for argument in sys.argv[1:4])
count, argv = int(options["ntasks"]), sys.argv[4:]
assert options["nodes"] == "1"
def start(task):
    names = {"SLURM_PROCID": task, "SLURM_LOCALID": task, "SLURM_STEP_NUM_TASKS": count, "SLURM_NTASKS": count,
             "SLURM_STEP_TASKS_PER_NODE": f"{count}(x1)" if count > 1 else "1", "SLURM_JOB_ID": 4711, "SLURM_NODEID": 0}
    return subprocess.Popen(argv, env={**os.environ, **{name: str(value) for name, value in names.items()}})
tasks = [start(task) for task in range(count)]
codes = {}
while len(codes) < count:
    for task, process in enumerate(tasks):
        if task not in codes and process.poll() is not None:
            codes[task] = process.returncode
            if process.returncode and options["kill-on-bad-exit"] == "1":
                print(f"srun: error: node: task {task}: Exited with exit code {process.returncode}", file=sys.stderr)
                for other in tasks:
                    other.terminate()
    time.sleep(0.02)
sys.exit(max(code if code >= 0 else 128 - code for code in codes.values()))
"""
KINDS = [pytest.param("mpirun", marks=MPIRUN), "srun", "deepspeed"]


@pytest.fixture
def path_with_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "srun").write_text(SRUN.replace("PYTHON", sys.executable))
    (directory / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "SLURM_PROCID": "0",
                "SLURM_STEP_NUM_TASKS": "1",
            },
            ("3", "4", "1", "2"),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, ("1", "2", "1", "2")),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_STEP_NUM_TASKS": "8",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
            },
            ("5", "8", "1", "4"),
        ),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}, ("1", "2", "1", "2")),
    ],
)
def test_each_launchers_variables_are_converted_to_torchs(
    environment: dict[str, str], expected: tuple[str, ...]
) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    assert ranks.rank_variables(environment) == dict(zip(names, expected, strict=True))


def test_without_a_launcher_there_is_no_rank() -> None:
    with pytest.raises(ValueError, match="start it with mpirun or srun"):
        ranks.rank_variables({"PATH": "/bin"})


def make_data(kind: str, **train: Any) -> dict[str, Any]:
    launcher = {"kind": kind}
    return SMALL | {"train": SMALL["train"] | train, "cluster": {"device": "cpu"}, "launcher": launcher}


@pytest.mark.slow
@pytest.mark.usefixtures("path_with_srun")
@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_trains_under_each_launcher_and_a_killed_rank_is_named(
    kind: str, tmp_path: Path, supervise: Supervise
) -> None:
    run = supervise(prepare(tmp_path, make_data(kind, iterations=10**6)))
    wait_for(lambda: run.output().count(b'"event":"step"') > 40, "steps are completed")
    events = [json.loads(line) for line in run.output().splitlines() if line.startswith(b'{"parlab":')]
    assert {(e["world_size"], e["rank"]) for e in events if e["event"] == "start"} == {(2, 0), (2, 1)}
    second = [process for process in run.training() if process.environ().get("RANK") == "1"]
    next(process for process in second if "runners.node.launch.ranks" not in process.cmdline()).kill()
    final = run.ends()
    assert final.reason.startswith(f"killed by signal 9 (SIGKILL) on rank 1 of host {socket.gethostname()};")
    assert run.training() == []


TEAMS_OWN = """
import os, torch.distributed as dist, torch
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
place = f"rank {dist.get_rank()} of {dist.get_world_size()}, local {os.environ['LOCAL_RANK']}"
os.write(1, f"{place}: {total.item()}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("path_with_srun")
@pytest.mark.parametrize("kind", [*KINDS, "torchrun"])
def test_a_command_gets_rank_and_port_in_torchruns_variables(
    kind: str, tmp_path: Path, supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, allowed = tmp_path / "train.py", tmp_path / "allowed.json"
    script.write_text(TEAMS_OWN)
    allowed.write_text(json.dumps([[str(script)]]))
    monkeypatch.setenv(ALLOWED_COMMANDS, str(allowed))
    layout = {"parallel": {"engine": "command", "data_parallel_size": 2}, "cluster": {"device": "cpu"}}
    run = supervise(prepare(tmp_path, layout | {"command": {"argv": [str(script)]}, "launcher": {"kind": kind}}))
    final: Report = run.ends()
    assert final.state == "finished", f"{final.reason}\n{final.traceback}"
    lines = sorted(line for line in run.output().splitlines() if line.startswith(b"rank "))
    assert lines == [b"rank 0 of 2, local 0: 3.0", b"rank 1 of 2, local 1: 3.0"]
    streams = run.streams()
    assert [[line for line in lines if line in streams[rank]] for rank in (0, 1)] == [[lines[0]], [lines[1]]]


LISTEN = """
import os, socket, sys
seen = os.environ["SEEN"]
with open(seen, "a") as file:
    print(os.environ["MASTER_PORT"], sys.argv[1], file=file)
if len(open(seen).readlines()) < int(os.environ["TIMES"]):
    sys.exit(98)
"""


@pytest.mark.parametrize(("times", "code"), [(1, 0), (3, 0), (99, 98)])
def test_a_launcher_whose_port_was_taken_is_started_again_with_another_port(
    times: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("TIMES", str(times))
    assert ports.run([sys.executable, "-c", LISTEN, f"--port={ports.PLACEHOLDER}"]) == code
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    assert len(seen) == min(times, ports.TRIES)
    assert len({port for port, _ in seen}) == len(seen)
    assert all(argument == f"--port={port}" for port, argument in seen)


def test_deepspeeds_launcher_never_uses_its_default_port_that_all_runs_would_share() -> None:
    argv = launch.command(RunConfig.model_validate(make_data("deepspeed")), Path("config.json"))
    assert argv[1:3] == ["-m", "runners.node.launch.ports"]
    assert "--master_port={master_port}" in argv


def test_a_launcher_that_is_not_there_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    code = ports.run(["/no/such/mpirun", "-np", "2"])
    evidence = Evidence()
    evidence.see(capfd.readouterr().out.encode())
    assert evidence.verdict(code).reason == (
        "launcher.kind: /no/such/mpirun cannot be started: No such file or directory; install it on the node, or use"
        " launcher.kind torchrun"
    )
