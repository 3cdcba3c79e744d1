"""A supervisor and its processes, without daemon and Redis: all that is printed is kept, and everything ends."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.config import RunConfig
from runners.launch import command
from runners.processes import MARKER, marked
from runners.protocol import Report
from runners.rundir import RunDir
from runners.spool import forget, read_batch, tail
from tests.conftest import SMALL
from tests.patience import PATIENCE_S, wait_for
from tests.runners.conftest import NVML, ROOT
from tests.runners.test_spool import mount_full, small_disk

__all__ = ["small_disk"]

Prepare = Callable[..., RunDir]
Supervise = Callable[..., "Supervised"]


class Supervised:
    """A supervisor in a process of its own, as the daemon starts it."""

    def __init__(self, run: RunDir, environment: Mapping[str, str]) -> None:
        self.run = run
        self.marker = f"test-{os.getpid()}-{time.time_ns()}:7/1"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runners.supervise", str(run.path)],
            cwd=ROOT,
            env={**os.environ, "REDIS_URL": "not for the training", MARKER: self.marker, **environment},
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def output(self) -> bytes:
        return self._read()[0]

    def reports(self) -> list[Report]:
        return self._read()[1]

    def _read(self) -> tuple[bytes, list[Report]]:
        output, reports, position = b"", list[Report](), 0
        while (piece := read_batch(self.run.spool, position)).next_position != position:
            output, reports, position = output + piece.output, reports + piece.reports, piece.next_position
        return output, reports

    def training(self) -> list[psutil.Process]:
        return [process for process, marker in marked().items() if marker == self.marker and process.pid != self.pid]

    @property
    def pid(self) -> int:
        return self.process.pid

    def says(self, text: bytes) -> None:
        wait_for(lambda: text in self.output(), f"the training says {text!r}")

    def ends(self, within_s: float = PATIENCE_S) -> Report:
        self.process.wait(within_s)
        return self.reports()[-1]


@pytest.fixture
def supervise() -> Iterator[Supervise]:
    started: list[Supervised] = []

    def start(run: RunDir, **environment: str) -> Supervised:
        started.append(Supervised(run, environment))
        return started[-1]

    yield start
    left = []
    for supervised in started:
        if supervised.process.poll() is None:
            supervised.process.kill()
        supervised.process.communicate()
        left += supervised.training()
    names = [f"{process.pid} {process.cmdline()}" for process in left]
    for process in left:
        process.kill()
    assert not names, f"left running: {names}"


def without_telemetry(output: bytes) -> bytes:
    return b"".join(line for line in output.splitlines(keepends=True) if b'"event":"telemetry"' not in line)


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
    subprocess.run([sys.executable, "-m", "runners.supervise", str(run.path)], cwd=ROOT, env=environment, check=True)
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
    assert final.reason == "out of memory on rank 0 in forward: asked for 3.0 MiB, free 1.0 MiB, of 4.0 MiB"


RANKS = """
    import os, sys, time
    rank = int(os.environ["RANK"])
    print("rank", rank, flush=True)
    if rank == 1:
        {fate}
    time.sleep(600)
"""


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


FAMILY = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if len(sys.argv) == 1:
        # A child in the group, and one that left it and lost its parent.
        subprocess.Popen([sys.executable, __file__, "child"])
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                print("grandchild", flush=True)
                time.sleep(600)
            os._exit(0)
        os.wait()
    print("here", flush=True)
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


def test_a_run_that_takes_too_long_is_failed(prepared: Prepare, supervise: Supervise) -> None:
    final = supervise(prepared("import time; time.sleep(600)", timeout_s=1)).ends()
    assert final.state == "failed"
    assert final.reason == "stopped after launcher.timeout_s 1 s; raise it or give the run less to do"


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
        [sys.executable, "-m", "runners.supervise", str(run.run.path)], cwd=ROOT, capture_output=True, text=True
    )
    assert second.returncode == 2
    assert "already has a supervisor" in second.stderr
    run.run.cancel("done")
    assert run.ends().state == "cancelled"


def test_a_line_of_ten_megabytes_and_binary_garbage_go_through_untouched(
    prepared: Prepare, supervise: Supervise
) -> None:
    script = """
        import os, random, sys, time
        random.seed(1)
        def write(data):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        write(b"before\\n")
        write(b"x" * 10_000_000 + b"\\n")
        write(random.randbytes(3_000_000))
        write(b"\\nafter\\nno end of line")
    """
    random.seed(1)
    expected = b"before\n" + b"x" * 10_000_000 + b"\n" + random.randbytes(3_000_000) + b"\nafter\nno end of line"
    run = supervise(prepared(script))
    assert run.ends().state == "finished"
    assert without_telemetry(run.output()) == expected


WAIT = """
    import os, time
    while not os.path.exists(os.path.join(os.path.dirname(__file__), "open")):
        time.sleep(0.05)
"""
"""A training that goes on for as long as the test wants: until open_gate."""


def open_gate(run: Supervised) -> None:
    (Path(run.run.read_launch()["argv"][-1]).parent / "open").touch()


def telemetry_of(run: Supervised) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.output().splitlines() if line.startswith(b'{"parlab":1')]


def test_telemetry_comes_once_a_second_on_lines_of_its_own(prepared: Prepare, supervise: Supervise) -> None:
    script = """
        import os, sys, time
        data = bytearray(50 << 20)
        while not os.path.exists(os.path.join(os.path.dirname(__file__), "open")):
            sys.stdout.write("half ")
            sys.stdout.flush()
            time.sleep(0.05)
            sys.stdout.write("line\\n")
            sys.stdout.flush()
    """
    began = time.monotonic()
    run = supervise(prepared(script))
    wait_for(lambda: len(telemetry_of(run)) >= 2, "it is sampled")
    open_gate(run)
    assert run.ends().state == "finished"
    events = telemetry_of(run)
    assert len(events) <= time.monotonic() - began
    assert {line for line in run.output().splitlines() if not line.startswith(b"{")} == {b"half line"}
    assert max(event["memory_bytes"] for event in events) > 50 << 20
    assert not [name for event in events for name in event if name.startswith(("gpu", "power")) or name.endswith("/lo")]


SLEEP = "import time; time.sleep(2.6); print('done')"
H200 = {"name": "NVIDIA H200", "uuid": "GPU-0", "memory": 143771 << 20}


def gpu_events(run: Supervised) -> list[dict[str, Any]]:
    return [event for event in telemetry_of(run) if event["rank"] >= 0]


def test_the_gpus_of_a_run_are_read_once_a_second(prepared: Prepare, supervise: Supervise) -> None:
    lacking = {**H200, "uuid": "GPU-1", "lacks": ["power", "utilization"], "loses": ["clocks"]}
    run = supervise(
        # The run has the second GPU as rank 0 and one that fell off the bus as rank 2.
        prepared(WAIT, gpus=[{"uuid": "GPU-1"}, {"uuid": "GPU-0"}, {"uuid": "GPU-gone"}]),
        FAKE_GPUS=json.dumps([H200, lacking]),
        PYTHONPATH=str(NVML),
    )
    wait_for(lambda: len({event["rank"] for event in gpu_events(run)}) == 2, "both GPUs are read")
    open_gate(run)
    assert run.ends().state == "finished"
    events = gpu_events(run)
    assert {event["rank"] for event in events} == {0, 1}
    whole = next(event for event in events if event["rank"] == 1)
    assert {name: value for name, value in whole.items() if name not in ("parlab", "t", "rank", "event")} == {
        "gpu_util_pct": 97.0,
        "memory_util_pct": 41.0,
        "gpu_mem_bytes": float(3 << 30),
        "power_watts": 412.345,
        "temperature_celsius": 61.0,
        "sm_clock_hz": 1980e6,
        "memory_clock_hz": 3201e6,
    }
    part = next(event for event in events if event["rank"] == 0)
    assert set(part) == {"parlab", "t", "rank", "event", "gpu_mem_bytes", "temperature_celsius"}


def test_a_driver_that_hangs_holds_nothing_up(prepared: Prepare, supervise: Supervise) -> None:
    run = supervise(
        prepared(SLEEP, gpus=[{"uuid": "GPU-0"}]),
        FAKE_GPUS=json.dumps([H200]),
        FAKE_HANGS="1",
        PYTHONPATH=str(NVML),
    )
    assert run.ends().state == "finished"
    assert gpu_events(run) == []
    assert without_telemetry(run.output()) == b"done\n"


def test_the_memory_of_a_supervisor_stays_small(prepared: Prepare, supervise: Supervise) -> None:
    script = """
        import os, sys, time
        print("begin", flush=True)
        while not os.path.exists(os.path.join(os.path.dirname(__file__), "open")):
            time.sleep(0.05)
        for n in range(100):
            sys.stdout.write("x" * 1_000_000)
        sys.stdout.flush()
        time.sleep(600)
    """
    run = supervise(prepared(script, spool_limit_mib=1000))
    run.says(b"begin")
    before = psutil.Process(run.pid).memory_info().rss
    open_gate(run)
    wait_for(lambda: tail(run.run.spool) > 99_000_000, "a line of 100 MB is in the spool")
    memory = psutil.Process(run.pid).memory_info().rss
    run.run.cancel("done")
    run.ends()
    assert memory - before < 50 << 20, f"{before >> 20} MiB, then {memory >> 20}"


COUNT = """
    import sys
    for n in range({lines}):
        print(n, "x" * 1000)
    print("all said", file=sys.stderr)
"""


def test_a_training_waits_while_the_spool_is_full_and_nothing_is_lost(prepared: Prepare, supervise: Supervise) -> None:
    run = supervise(prepared(COUNT.format(lines=4000), spool_limit_mib=1, disk_grace_s=60))
    output, position = b"", 0

    def read() -> bool:
        """Read and forget like a daemon whose server answers."""
        nonlocal output, position
        piece = read_batch(run.run.spool, position)
        output, position = output + piece.output, piece.next_position
        return run.process.poll() is not None and not piece.output and not piece.reports

    wait_for(lambda: "the training waits" in _log(run), "the supervisor meets the limit")
    size = sum(path.stat().st_size for path in run.run.spool.iterdir())
    assert size < 1.4 * (1 << 20)

    def read_and_forget() -> bool:
        is_over = read()
        forget(run.run.spool, position)
        return is_over

    wait_for(read_and_forget, "everything is read")
    numbers = [int(line.split()[0]) for line in without_telemetry(output).splitlines()[:-1]]
    assert numbers == list(range(4000))
    assert output.endswith(b"all said\n")


def _log(run: Supervised) -> str:
    assert run.process.stderr is not None
    os.set_blocking(run.process.stderr.fileno(), False)
    return (run.process.stderr.read() or b"").decode()


def test_a_disk_that_stays_full_ends_the_run_and_says_what_to_do(
    prepared: Prepare, supervise: Supervise, small_disk: Path
) -> None:
    script = """
        import time
        print("begin", flush=True)
        while True:
            print("y" * 10_000, flush=True)
            time.sleep(0.01)
    """
    run = supervise(prepared(script, root=small_disk, disk_grace_s=1))
    run.says(b"begin")
    mount_full(small_disk)
    final = run.ends()
    assert final.state == "failed"
    assert str(small_disk) in final.reason
    assert "No space left on device; 0.0 MiB are left there; free some space" in final.reason
    assert b"begin\n" in run.output()
    assert run.training() == []


def test_a_cancel_is_obeyed_while_the_disk_is_full(prepared: Prepare, supervise: Supervise) -> None:
    run = supervise(prepared("while True: print('y' * 10_000)", spool_limit_mib=1, disk_grace_s=600))
    wait_for(lambda: "the training waits" in _log(run), "the supervisor meets the limit")
    run.run.cancel("enough")
    final = run.ends()  # long before disk_grace_s
    assert (final.state, final.reason) == ("cancelled", "enough")


def test_a_supervisor_imports_nothing_heavy() -> None:
    program = (
        "import sys, runners.supervise; print([m for m in ('torch', 'celery', 'numpy', 'django') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"


def test_a_directory_that_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not named RUN-ATTEMPT"):
        RunDir(tmp_path / "somewhere")


def test_a_pid_that_came_to_mean_another_process_is_no_supervisor(prepared: Prepare) -> None:
    run = prepared("")
    run.write_supervisor()
    found: Any = run.supervisor()
    assert found.pid == os.getpid()
    content = json.loads((run.path / "supervisor.json").read_text())
    (run.path / "supervisor.json").write_text(json.dumps({**content, "create_time": content["create_time"] - 60}))
    assert run.supervisor() is None
