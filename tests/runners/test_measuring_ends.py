"""A measurement of a node does not outlive its daemon."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runners.telemetry.measured import KINDS, Kind


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_measurement_ends_before_it_begins_if_its_daemon_has_ended_during_the_imports(kind: Kind) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    done = subprocess.run([sys.executable, "-m", kind.module, gone.stdout.strip()], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
