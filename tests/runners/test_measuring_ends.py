"""A measurement of a node outlives neither its daemon nor the time in which the node is free."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from runners.telemetry.measured import KINDS, Interrupted, Kind, measure
from tests.patience import wait_for
from tests.runners.conftest import NodeMachine


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_measurement_ends_before_it_begins_if_its_daemon_has_ended_during_the_imports(kind: Kind) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    done = subprocess.run([sys.executable, "-m", kind.module, gone.stdout.strip()], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")


MEASURES = """
    import os, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(os.environ["TOLD"], "w").write(f"{os.getpid()} {child.pid}")
    time.sleep(600)
"""


def test_a_measurement_ends_with_its_processes_once_the_node_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endless.py").write_text(textwrap.dedent(MEASURES))
    told = tmp_path / "told"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TOLD", str(told))
    with pytest.raises(Interrupted):
        measure(Kind("endless", "endless", "nothing", ()), lambda: not (told.exists() and told.read_text()))
    left = [int(pid) for pid in told.read_text().split()]
    wait_for(lambda: not any(_runs(pid) for pid in left), "both processes have ended")


def test_a_daemon_that_is_stopped_leaves_no_process_of_its_measurement(machine: NodeMachine, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(textwrap.dedent(MEASURES))
    told = tmp_path / "told"
    path = f"{tmp_path}:{machine.environment['PYTHONPATH']}"
    daemon = machine.start_daemon("tests.runners.measuring_node", PYTHONPATH=path, TOLD=str(told))
    wait_for(lambda: told.exists() and len(told.read_text().split()) == 2, "the node is measured")
    daemon.terminate()
    daemon.wait()
    assert not any(_runs(int(pid)) for pid in told.read_text().split())


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_what_a_measurement_prints_is_returned_and_a_failed_one_has_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "fine.py").write_text(f"print('{json.dumps({'flops': 1})}')")
    assert measure(Kind("fine", "fine", "nothing", ()), lambda: True) == {"flops": 1}
    (tmp_path / "failing.py").write_text("raise SystemExit('no torch here')")
    assert measure(Kind("failing", "failing", "MFU is missing", ()), lambda: True) is None
    assert "so MFU is missing: no torch here" in caplog.text
