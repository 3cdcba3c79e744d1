"""Short campaigns, as `make faults` runs long ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.stack import ROOT
from tests.patience import TRAINING_S

GENTLE = "web,web-cut,redis-wiped,cut,slow,twice,disorder,late,twin,again,torn,full-disk,out-of-memory"
"""The kinds of which one lasts for seconds, not for a minute."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "options"),
    [(3, ["--seed", "5"]), (6, ["--seed", "2", "--no-slurm", "--kinds", GENTLE])],
    ids=["kill -9", "other faults"],
)
def test_faults_lose_and_double_nothing_and_leave_no_process_and_no_false_state(
    tmp_path: Path, faults: int, options: list[str]
) -> None:
    output = tmp_path / "faults.json"
    command = [sys.executable, "-m", "tests.faults", "--kills", str(faults), *options, "--output", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TRAINING_S)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    summary = json.loads(output.read_text())
    assert summary["faults"] == faults
    assert summary["events_stored"] == summary["events_printed"] > 0
