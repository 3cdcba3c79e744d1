"""The command `parlab` as a process of its own, against a running server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parlab.lab.models import Experiment, Run
from parlab.series import log, store
from tests.patience import PATIENCE_S, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

HEAD = """using world size: 2, data-parallel size: 2, tensor-model-parallel size: 1, pipeline-model-parallel size: 1
------------------------ arguments ------------------------
  global_batch_size ............................... 8
  hidden_size ..................................... 512
  micro_batch_size ................................ 4
  num_layers ...................................... 6
-------------------- end of arguments ---------------------
"""
LINE = (
    " iteration {n:8d}/     100 | consumed samples: {n:12d} | elapsed time per iteration (ms): 250.0 |"
    " learning rate: 1.0E-04 | global batch size:     8 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 1.0 |\n"
)


def iterations(first: int, last: int) -> str:
    return "".join(LINE.format(n=n, loss=5.0 - n / 100) for n in range(first, last + 1))


class Parlab:
    """Starts `parlab` with arguments."""

    def __init__(self, environ: dict[str, str], directory: Path) -> None:
        self.environ = environ
        self._directory = directory
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "parlab.client.command.commands", *arguments],
            env=self.environ,
            cwd=self._directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def __call__(self, *arguments: str, text: str = "") -> tuple[int, str, str]:
        """Run a command; return exit code, output and errors."""
        process = self.start(*arguments)
        output, errors = process.communicate(text, timeout=PATIENCE_S)
        return process.returncode, output, errors

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def parlab(environ: dict[str, str], tmp_path: Path) -> Iterator[Parlab]:
    command = Parlab(environ, tmp_path)
    yield command
    command.end()


def losses(run: Run) -> list[int]:
    return [int(step) for step in store.read(run.current_attempt().pk, "loss", rank=0).steps]


def test_a_command_is_reported_through_the_readers(parlab: Parlab, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text(HEAD + iterations(1, 50))
    script = "import sys; sys.stdout.write(open('train.txt').read()); sys.stderr.write('careful\\n')"
    code, output, errors = parlab("run", "--experiment", "Wrapped", "--", sys.executable, "-c", script)
    assert (code, output) == (0, HEAD + iterations(1, 50))
    assert "careful" in errors
    run = Run.objects.get(experiment__name="Wrapped")
    assert (run.state, run.origin) == ("finished", "reported")
    assert losses(run) == list(range(1, 51))
    assert run.summary["read_by"] == "megatron"
    assert run.summary["step_time_s"]["median"] == 0.25
    assert run.resolved["train"]["global_batch_size"] == 8
    assert run.resolved["model"]["hidden_size"] == 512
    assert run.current_attempt().command[-1] == script


def test_the_lines_of_a_command_are_series_while_it_runs(parlab: Parlab, tmp_path: Path) -> None:
    script = f"""
import os, sys, time
sys.stdout.write({HEAD + iterations(1, 20)!r})
while not os.path.exists('go'):
    time.sleep(0.02)
sys.stdout.write({iterations(21, 30)!r})
"""
    process = parlab.start("run", "--", sys.executable, "-c", script)
    wait_for(lambda: Run.objects.exists() and losses(Run.objects.get()) == list(range(1, 21)), "20 steps on the server")
    assert Run.objects.get().state == "running"
    (tmp_path / "go").touch()
    assert process.wait(PATIENCE_S) == 0
    assert losses(Run.objects.get()) == list(range(1, 31))


@pytest.mark.parametrize(
    ("source", "code", "state", "reason"),
    [
        ("raise ValueError('bad layout')", 1, "failed", "exit code 1: ValueError: bad layout"),
        ("import sys; sys.exit(3)", 3, "failed", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", 137, "failed", "killed by signal SIGKILL"),
        ("raise MemoryError('CUDA out of memory: 1 GiB')", 1, "oom", "out of memory"),
        ("print('no line end', end='')", 0, "finished", ""),
    ],
)
def test_the_exit_code_of_a_command_decides(parlab: Parlab, source: str, code: int, state: str, reason: str) -> None:
    assert parlab("run", "--", sys.executable, "-c", source)[0] == code
    run = Run.objects.get()
    assert (run.state, run.reason) == (state, reason)


def test_a_command_that_does_not_exist_fails_like_in_a_shell(parlab: Parlab) -> None:
    code, _, errors = parlab("run", "--", "no-such-command")
    assert code == 127
    assert "no-such-command: No such file or directory" in errors
    assert Run.objects.get().state == "failed"
    assert parlab("run")[0] == 2


def test_scripts_inside_a_wrapped_command_report_into_the_same_run(parlab: Parlab) -> None:
    script = "import parlab; run = parlab.init('Other'); run.log({'loss': 1.0}, step=1); print('hello')"
    assert parlab("run", "--experiment", "Outer", "--", sys.executable, "-c", script)[0] == 0
    run = Run.objects.get()
    assert (run.experiment.name, run.state, run.tracked.streams.count()) == ("Outer", "finished", 2)
    assert losses(run) == [1]
    assert "hello" in log.log_tail(run.current_attempt().pk)


def test_nodes_of_one_slurm_job_report_into_one_run(parlab: Parlab) -> None:
    for node in ("0", "1"):
        parlab.environ |= {"SLURM_JOB_ID": "77", "SLURM_NODEID": node}
        assert parlab("run", "--", sys.executable, "-c", f"print('node {node}')")[0] == 0
    run = Run.objects.get()
    assert sorted(run.tracked.streams.values_list("rank", flat=True)) == [0, 1]
    assert log.log_tail(run.current_attempt().pk) == ["node 0", "node 1"]


@pytest.mark.slow
def test_a_followed_file_continues_its_run_when_it_has_grown(parlab: Parlab, tmp_path: Path) -> None:
    path = tmp_path / "slurm-123.out"
    path.write_text(HEAD + iterations(1, 10) + "half a li")
    process = parlab.start("follow", str(path))
    wait_for(lambda: Run.objects.exists() and losses(Run.objects.get()) == list(range(1, 11)), "10 steps on the server")
    process.kill()
    process.wait()
    with path.open("a") as file:
        file.write("ne\n" + iterations(11, 20))
    code, output, _ = parlab("follow", "--idle", "0.5", str(path))
    assert code == 0
    run = Run.objects.get()
    assert f"run {run.number} of {run.experiment.slug}" in output
    assert (run.state, losses(run)) == ("finished", list(range(1, 21)))
    assert b"".join(log.read_log(run.current_attempt().pk)) == path.read_bytes()
    with path.open("a") as file:
        file.write(iterations(21, 25))
    assert parlab("follow", "--idle", "0.5", str(path))[0] == 0
    assert losses(Run.objects.get()) == list(range(1, 26))
    path.write_text(HEAD + iterations(1, 5))
    assert parlab("follow", "--idle", "0.5", str(path))[0] == 0
    assert [losses(run) for run in Run.objects.order_by("number")] == [list(range(1, 26)), list(range(1, 6))]


@pytest.mark.slow
def test_login_lists_shows_and_prints_logs(parlab: Parlab, token: str, client_home: Path) -> None:
    del parlab.environ["PARLAB_TOKEN"]
    code, _, errors = parlab("ls")
    assert (code, "authentication" in errors.lower()) == (1, True)
    assert parlab("login", "http://127.0.0.1:9", text=f"{token}\n")[0] == 3
    code, output, errors = parlab("login", parlab.environ["PARLAB_URL"], text=f"{token}\n")
    assert (code, "stored in" in output) == (0, True), errors
    assert (client_home / "login.json").stat().st_mode & 0o077 == 0
    assert parlab("ls")[1] == "nothing here yet\n"
    assert parlab("run", "--experiment", "Seen", "--", sys.executable, "-c", "print('hello')")[0] == 0
    slug = Experiment.objects.get().slug
    assert "Seen" in parlab("ls")[1]
    listed = json.loads(parlab("ls", slug, "--json")[1])
    assert [(run["number"], run["state"]) for run in listed] == [(1, "finished")]
    assert parlab("ls", slug, "--state", "failed")[1] == "nothing here yet\n"
    assert json.loads(parlab("show", slug, "1", "--json")[1])["state"] == "finished"
    assert "state: finished" in parlab("show", slug, "1")[1]
    assert parlab("logs", slug, "1", "-f")[:2] == (0, "hello\n")
    code, _, errors = parlab("show", slug, "9")
    assert (code, "see the list" in errors) == (1, True)
    assert parlab("--url", "http://127.0.0.1:9", "ls")[0] == 3
    assert parlab("--url", "gopher://x", "ls")[0] == 1


def test_logs_follow_a_run_until_it_ends(parlab: Parlab, tmp_path: Path) -> None:
    script = "import os, time\nprint('begin')\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('end')"
    training = parlab.start("run", "--experiment", "Live", "--", sys.executable, "-c", script)
    wait_for(lambda: Run.objects.filter(state="running").exists(), "the run is there")
    logs = parlab.start("logs", "-f", Experiment.objects.get().slug, "1")
    assert logs.stdout is not None
    assert logs.stdout.readline() == "begin\n"
    (tmp_path / "go").touch()
    assert (logs.stdout.read(), logs.wait(PATIENCE_S)) == ("end\n", 0)
    assert training.wait(PATIENCE_S) == 0


def test_an_interrupt_reaches_the_command_through_the_wrapper(parlab: Parlab) -> None:
    script = "import signal, time; signal.signal(15, lambda *_: exit(5)); print('ready', flush=True); time.sleep(600)"
    process = parlab.start("run", "--", sys.executable, "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 5
    assert Run.objects.get().reason == "exit code 5"
