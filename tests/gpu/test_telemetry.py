"""NVML of a real driver: its samples of the first GPU while a process keeps it busy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runners.node.rundir import RunDir
from tests.gpu.devices import GPU
from tests.gpu.load import BUSY, events
from tests.patience import PATIENCE_S

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed here")

from runners.telemetry import gpus, telemetry

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("device", [GPU])
def test_samples_of_a_busy_gpu_show_its_load(device: str, tmp_path: Path) -> None:
    description = gpus.described()
    assert description is not None
    (gpu, *_), driver = description
    assert gpu["memory_bytes"] > 1 << 30
    assert telemetry.hardware()["driver"] == driver
    run = RunDir(tmp_path / "7-1")
    run.path.mkdir()
    launch = {
        "argv": [sys.executable, "-c", BUSY],
        "environment": {"PYTHONPATH": str(ROOT)},
        "shell": "",
        "timeout_s": 3600,
        "hardware": {"hostname": "here"},
        "gpus": [gpu],
        "spool_limit_mib": 64,
        "disk_grace_s": 5,
    }
    run.write_launch(launch)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu["uuid"]}
    command = [sys.executable, "-m", "runners.supervisor.supervise", str(run.path)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=PATIENCE_S)
    samples = [event for event in events(run.spool) if event["rank"] == 0]
    assert len(samples) >= 4
    assert max(sample["gpu_util_pct"] for sample in samples) > 50
    assert max(sample["gpu_mem_bytes"] for sample in samples) > 300 << 20
    assert all(sample["sm_clock_hz"] > 1e8 and sample["temperature_celsius"] > 10 for sample in samples)
    assert all(0 < sample["power_watts"] < 3000 for sample in samples)
