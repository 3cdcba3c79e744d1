"""A short campaign, as `make faults` runs a long one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.stack import ROOT
from tests.patience import TRAINING_S


@pytest.mark.slow
def test_kill_9_loses_and_doubles_nothing_and_leaves_no_process_and_no_false_state(tmp_path: Path) -> None:
    output = tmp_path / "faults.json"
    command = [sys.executable, "-m", "tests.faults", "--kills", "3", "--seed", "5", "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TRAINING_S)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    summary = json.loads(output.read_text())
    assert summary["faults"] == 3
    assert summary["events_stored"] == summary["events_printed"] > 0
