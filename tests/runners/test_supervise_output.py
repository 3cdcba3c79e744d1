"""What a supervised training prints, and what is seen of it: all is kept, also where there is no room for it."""

from __future__ import annotations

import json
import os
import random
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from runners.node import stop_and_drain
from runners.node.rundir import StateDir
from runners.supervisor.spool import forget, read_batch, tail
from tests.patience import PATIENCE_S, wait_for
from tests.runners.conftest import NVML
from tests.runners.supervised import WAIT, Prepare, Supervise, Supervised, open_gate, supervise, without_telemetry
from tests.runners.test_spool import mount_full, small_disk

__all__ = ["small_disk", "supervise"]


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_memory_of_a_supervisor_stays_small(prepared: Prepare, supervise: Supervise) -> None:
    script = """
        import os, sys, time
        print("begin", flush=True)
        while not os.path.exists(os.path.join(os.path.dirname(__file__), "open")):
            time.sleep(0.05)
        for n in range(40):
            sys.stdout.write("x" * 1_000_000)
        sys.stdout.flush()
        time.sleep(600)
    """
    run = supervise(prepared(script, spool_limit_mib=1000))
    run.says(b"begin")
    before = psutil.Process(run.pid).memory_info().rss
    open_gate(run)
    wait_for(lambda: tail(run.run.spool) > 39_000_000, "a line of 40 MB is in the spool")
    memory = psutil.Process(run.pid).memory_info().rss
    run.run.cancel("done")
    run.ends()
    assert memory - before < 20 << 20, f"{before >> 20} MiB, then {memory >> 20}"


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

    wait_for(lambda: "the run waits" in _log(run), "the supervisor meets the limit")
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
    assert "No space left on device; 0.0 MiB are free there; free some space" in final.reason
    assert b"begin\n" in run.output()
    assert run.training() == []


@pytest.mark.slow
def test_a_cancel_ends_the_processes_while_the_disk_is_full_and_says_that_output_is_missing(
    prepared: Prepare, supervise: Supervise
) -> None:
    run = supervise(prepared("while True: print('y' * 10_000)", spool_limit_mib=1, disk_grace_s=15))
    wait_for(lambda: "the run waits" in _log(run), "the supervisor meets the limit")
    run.run.cancel("enough")
    wait_for(lambda: run.training() == [], "the training is ended")
    final = run.ends()
    assert final.state == "cancelled"
    assert final.reason.startswith("enough; its last output cannot be written to ")


def test_a_cancel_reaches_a_run_whose_disk_has_no_room_for_the_reason(
    prepared: Prepare, supervise: Supervise, small_disk: Path
) -> None:
    run = supervise(prepared("import time; print('begin'); time.sleep(1000)", root=small_disk, disk_grace_s=120))
    run.says(b"begin")
    mount_full(small_disk)
    run.run.cancel("enough")
    wait_for(lambda: run.training() == [], "the training is ended")
    (small_disk / "filler").unlink()
    final = run.ends()
    assert final.state == "cancelled"
    assert "could not store the reason" in final.reason


@pytest.mark.slow
def test_stop_all_waits_as_long_as_a_run_may_wait_for_room(
    prepared: Prepare, supervise: Supervise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_and_drain, "STOP_ALL_WITHIN_S", 0.2)
    state = StateDir(tmp_path / "state")
    script = "while True: print('y' * 10_000)"
    run = supervise(prepared(script, root=state.runs_path, spool_limit_mib=1, disk_grace_s=PATIENCE_S))
    wait_for(lambda: "the run waits" in _log(run), "the supervisor meets the limit")
    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(stop_and_drain.stop_all, state, Namespace())
        wait_for(lambda: run.training() == [], "the training is ended")
        time.sleep(1)
        assert not stopping.done()
        while not stopping.done():
            forget(run.run.spool, tail(run.run.spool))  # as the answers of the server do
            time.sleep(0.1)
        assert stopping.result() == 0
    assert run.ends().state == "cancelled"


@pytest.mark.slow
def test_a_run_that_is_stopped_while_the_disk_is_full_keeps_all_that_it_printed(
    prepared: Prepare, supervise: Supervise, small_disk: Path, tmp_path: Path
) -> None:
    witness = tmp_path / "printed"
    script = f"""
    print("begin", flush=True)
    {WAIT}
    for n in range(200):
        print(n, "y" * 2_000, flush=True)
        with open({str(witness)!r}, "a") as file:
            file.write("x")
    time.sleep(1000)
    """
    run = supervise(prepared(script, root=small_disk, disk_grace_s=120))
    run.says(b"begin")
    mount_full(small_disk)
    open_gate(run)
    wait_for(lambda: "the run waits" in _log(run), "the supervisor meets the full disk")
    run.process.terminate()
    wait_for(lambda: run.training() == [], "the training is ended")
    time.sleep(2)  # longer than an ended run waits for the last bytes of its pipe
    assert run.process.poll() is None
    printed = len(witness.read_text())
    (small_disk / "filler").unlink()
    assert run.ends().reason == "the node's daemon was stopped"
    numbers = [int(line.split()[0]) for line in without_telemetry(run.output()).splitlines() if b"y" in line]
    assert printed > 0
    assert numbers[:printed] == list(range(printed))
