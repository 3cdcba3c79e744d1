"""A supervisor and its processes, without daemon and Redis: how a run ends, and that all of it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from runners.config import RunConfig
from runners.node.launch.launch import command
from runners.node.rundir import RunDir
from runners.supervisor.spool import read_batch
from tests.conftest import SMALL
from tests.patience import wait_for
from tests.runners.conftest import ROOT
from tests.runners.supervised import Prepare, Supervise, open_gate, supervise, without_telemetry

__all__ = ["supervise"]


def test_a_run_is_reported_with_its_command_and_environment_and_its_end(
    prepared: Prepare, supervise: Supervise
) -> None:
    run = supervise(prepared("import sys; print('out'); print('err', file=sys.stderr)"))
    final = run.ends()
    running = run.reports()[0]
    assert running.state == "running"
    assert running.command[0] == sys.executable
    assert running.environment["hostname"] == "here"
    assert running.environment["torch"]
    assert (final.state, final.exit_code, final.reason) == ("finished", 0, "")
    assert without_telemetry(run.output()) == b"out\nerr\n"


def test_the_training_sees_no_secrets_when_the_daemon_starts_its_supervisor(prepared: Prepare) -> None:
    # The daemon's part is tested in test_daemon; here: nothing is added on the way.
    run = prepared("import os; print(sorted(n for n in os.environ if 'KEY' in n or 'REDIS' in n))")
    environment = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    subprocess.run(
        [sys.executable, "-m", "runners.supervisor.supervise", str(run.path)], cwd=ROOT, env=environment, check=True
    )
    output = b""
    position = 0
    while (piece := read_batch(run.spool, position)).next_position != position:
        output, position = output + piece.output, piece.next_position
    assert b"[]" in output


def test_a_failure_is_reported_with_its_traceback(prepared: Prepare, supervise: Supervise) -> None:
    final = supervise(prepared("def step():\n    raise ValueError('no good')\nstep()")).ends()
    assert (final.state, final.exit_code) == ("failed", 1)
    assert final.reason == "ValueError: no good (exit code 1)"
    assert final.traceback.startswith("Traceback (most recent call last):")
    assert "in step" in final.traceback


def test_out_of_memory_is_reported_with_its_sizes(prepared: Prepare, supervise: Supervise) -> None:
    script = """
        import json, sys
        sizes = {"requested_bytes": 3 << 20, "free_bytes": 1 << 20, "total_bytes": 4 << 20}
        event = {"parlab": 1, "t": 1, "rank": 0, "event": "oom", "phase": "forward", **sizes}
        print(json.dumps(event, separators=(",", ":")))
        sys.exit(77)
    """
    final = supervise(prepared(script)).ends()
    assert (final.state, final.exit_code) == ("oom", 77)
    assert final.reason == "out of memory on rank 0 in forward: requested 3.0 MiB, free 1.0 MiB, of 4.0 MiB"


RANKS = """
    import os, sys, time
    rank = int(os.environ["RANK"])
    print("rank", rank, flush=True)
    if rank == 1:
        {fate}
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fate", "state", "reason"),
    [
        ("raise ValueError('no good')", "failed", "ValueError: no good on rank 1 (exit code 1)"),
        ("sys.exit(77)", "oom", "out of memory on rank 1"),
        ("os.kill(os.getpid(), 9)", "failed", "killed by signal 9 (SIGKILL) on rank 1"),
    ],
)
def test_what_befell_a_rank_is_told_through_torchrun(
    prepared: Prepare, supervise: Supervise, fate: str, state: str, reason: str
) -> None:
    run = prepared(RANKS.format(fate=fate))
    launch = run.read_launch()
    torchrun = command(RunConfig.model_validate(SMALL), run.config)
    run.write_launch({**launch, "argv": [*torchrun[: torchrun.index("-m", 3)], launch["argv"][-1]]})
    final = supervise(run).ends()
    assert final.state == state
    assert final.reason.startswith(reason)
    assert "ChildFailedError" not in final.traceback


def test_a_killed_training_is_failed_with_a_hint(prepared: Prepare, supervise: Supervise) -> None:
    final = supervise(prepared("import os; os.kill(os.getpid(), 9)")).ends()
    assert (final.state, final.exit_code) == ("failed", -9)
    assert "memory" in final.reason


def test_a_command_that_does_not_exist_is_failed_with_a_remedy(prepared: Prepare, supervise: Supervise) -> None:
    final = supervise(prepared("", argv=["/no/such/python", "x"])).ends()
    assert final.state == "failed"
    assert final.reason == "/no/such/python cannot be started: No such file or directory; install it on the node"


# The three share a pipe: one write each, for a print writes text and newline apart.
FAMILY = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if len(sys.argv) == 1:
        # A child in the group, and one that left it and lost its parent.
        subprocess.Popen([sys.executable, __file__, "child"])
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(1, b"grandchild\\n")
                time.sleep(600)
            os._exit(0)
        os.wait()
    os.write(1, b"here\\n")
    time.sleep(600)
"""


def test_a_cancel_ends_children_grandchildren_and_those_that_ignore_sigterm(
    prepared: Prepare, supervise: Supervise
) -> None:
    run = supervise(prepared(FAMILY))
    wait_for(lambda: run.output().count(b"here\n") == 2 and b"grandchild" in run.output(), "the family is there")
    assert len(run.training()) == 3
    run.run.cancel("cancelled by ada")
    final = run.ends()
    assert run.training() == []
    assert (final.state, final.reason) == ("cancelled", "cancelled by ada")


LAUNCHER = """
    import os, subprocess, sys, time
    rank = "import os, time; os.write(1, b'rank 1 is here\\\\n'); time.sleep(600)"
    subprocess.call([sys.executable, "-c", rank], env={**os.environ, "RANK": "1"})
    while not os.path.exists(os.path.join(os.path.dirname(__file__), "open")):
        time.sleep(0.05)
    os.write(1, b'{"parlab":1,"t":1,"rank":1,"event":"death","host":"here","code":-9}\\n')
    sys.exit(1)
"""
"""A launcher that takes its time to say how its rank has ended."""


@pytest.mark.parametrize(
    ("has_ended", "is_consequence", "state"),
    [
        (True, True, "failed"),
        pytest.param(False, True, "cancelled", marks=pytest.mark.slow),
        pytest.param(True, False, "cancelled", marks=pytest.mark.slow),
    ],
)
def test_a_node_whose_rank_has_ended_says_so_although_another_nodes_end_was_reported_first(
    prepared: Prepare, supervise: Supervise, has_ended: bool, is_consequence: bool, state: str
) -> None:
    run = supervise(prepared(LAUNCHER, share={"nodes": 2, "node_rank": 1}))
    run.says(b"rank 1 is here")
    samples = run.output().count(b'"telemetry"')
    wait_for(lambda: run.output().count(b'"telemetry"') > samples + 1, "the rank is seen")
    if has_ended:
        (rank,) = [process for process in run.training() if process.environ().get("RANK")]
        rank.kill()
        wait_for(lambda: not rank.is_running(), "the launcher knows it")
    run.run.cancel("node n0: connection closed by peer", is_consequence=is_consequence)
    if state == "failed":
        time.sleep(0.3)  # the order has come first
        open_gate(run)
    final = run.ends()
    assert (final.state, final.is_consequence) == (state, False)
    if state == "failed":
        assert (final.first_failed_rank, final.exit_code) == (1, 1)
        assert final.reason.startswith("killed by signal 9 (SIGKILL) on rank 1 of host here")


def test_a_training_that_listens_to_sigterm_may_say_goodbye(prepared: Prepare, supervise: Supervise) -> None:
    script = """
        import os, signal, time
        def goodbye(*_):
            os.write(1, b"saved\\n")
            os._exit(0)
        signal.signal(signal.SIGTERM, goodbye)
        print("here", flush=True)
        time.sleep(600)
    """
    run = supervise(prepared(script))
    run.says(b"here")
    run.run.cancel("enough")
    assert run.ends().state == "cancelled"
    assert without_telemetry(run.output()) == b"here\nsaved\n"


@pytest.mark.parametrize(("grace_s", "printed"), [(30, b"here\nsaved\n"), (0.3, b"here\n")])
def test_a_checkpoint_has_the_grace_of_the_run(
    prepared: Prepare, supervise: Supervise, grace_s: float, printed: bytes
) -> None:
    script = """
        import os, signal, time
        def save(*_):
            time.sleep(1.8)  # longer than the second that runs had once
            os.write(1, b"saved\\n")
            os._exit(0)
        signal.signal(signal.SIGTERM, save)
        print("here", flush=True)
        while True:
            time.sleep(600)
    """
    run = supervise(prepared(script, grace_s=grace_s))
    run.says(b"here")
    run.run.cancel("enough")
    assert run.ends().state == "cancelled"
    assert without_telemetry(run.output()) == printed


def test_what_a_finished_command_leaves_behind_is_ended(prepared: Prepare, supervise: Supervise) -> None:
    script = """
        import subprocess, sys
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, **quiet)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("done")
    """
    run = supervise(prepared(script))
    assert run.ends().state == "finished"
    assert run.training() == []


def test_a_run_that_takes_too_long_has_reached_its_time_limit(prepared: Prepare, supervise: Supervise) -> None:
    final = supervise(prepared("import time; time.sleep(600)", timeout_s=1)).ends()
    assert final.state == "time-limit"
    assert final.reason == "stopped after launcher.timeout_s 1 s; raise it, or shorten the run"


def test_sigterm_to_the_supervisor_cancels_the_run(prepared: Prepare, supervise: Supervise) -> None:
    run = supervise(prepared("import time; print('here', flush=True); time.sleep(600)"))
    run.says(b"here")
    run.process.terminate()
    final = run.ends()
    assert (final.state, final.reason) == ("cancelled", "the node's daemon was stopped")


def test_the_training_dies_with_a_supervisor_that_is_killed(prepared: Prepare, supervise: Supervise) -> None:
    run = supervise(prepared("import time; print('here', flush=True); time.sleep(600)"))
    run.says(b"here")
    run.process.kill()
    wait_for(lambda: not run.training(), "the training has ended")
    assert run.reports()[-1].state == "running"


def test_a_second_supervisor_of_a_run_is_refused(prepared: Prepare, supervise: Supervise) -> None:
    run = supervise(prepared("import time; print('here', flush=True); time.sleep(600)"))
    run.says(b"here")
    second = subprocess.run(
        [sys.executable, "-m", "runners.supervisor.supervise", str(run.run.path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert second.returncode == 2
    assert "already has a supervisor" in second.stderr
    run.run.cancel("done")
    assert run.ends().state == "cancelled"


def test_a_supervisor_imports_nothing_heavy() -> None:
    heavy = ("torch", "celery", "numpy", "django")
    program = f"import sys, runners.supervisor.supervise; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"


def test_a_directory_that_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not named RUN-ATTEMPT"):
        RunDir(tmp_path / "somewhere")


def test_a_pid_that_came_to_mean_another_process_is_no_supervisor(prepared: Prepare) -> None:
    run = prepared("")
    run.write_supervisor()
    supervisor: Any = run.supervisor()
    assert supervisor.pid == os.getpid()
    content = json.loads((run.path / "supervisor.json").read_text())
    (run.path / "supervisor.json").write_text(json.dumps({**content, "create_time": content["create_time"] - 60}))
    assert run.supervisor() is None
