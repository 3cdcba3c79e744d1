"""The GPU of a script that parlab did not start: the client samples what NVIDIA's own binding shows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gpu.devices import GPU
from tests.gpu.load import BUSY, events
from tests.patience import PATIENCE_S

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed here")

ROOT = Path(__file__).parent.parent.parent
# Nothing answers at the address, so that everything stays on disk.
SCRIPT = f"""
import torch
from parlab.client import run as client
run = client.init(experiment="gpu", url="http://127.0.0.1:9", token="secret")
held = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
{BUSY}"""


@pytest.mark.parametrize("device", [GPU])
def test_a_script_reports_the_load_of_its_gpu(device: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PARLAB_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    seen: dict[str, list[float]] = {
        "gpu_mem_bytes": [],
        "power_watts": [],
        "sm_clock_hz": [],
        "temperature_celsius": [],
    }
    script = subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment)
    try:
        end = time.monotonic() + PATIENCE_S
        while script.poll() is None and time.monotonic() < end:
            memory = pynvml.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
            seen["gpu_mem_bytes"].append(memory.used)
            seen["power_watts"].append(pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3)
            seen["sm_clock_hz"].append(pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM) * 1e6)
            seen["temperature_celsius"].append(pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU))
            time.sleep(0.2)
    finally:
        script.kill()
        script.wait()
        pynvml.nvmlShutdown()
    assert script.returncode == 0
    (records,) = tmp_path.glob("spool/*/records")
    sampled = [event for event in events(records) if "gpu_util_pct" in event]
    assert len(sampled) >= 4
    assert {sample["rank"] for sample in sampled} == {0}
    assert max(sample["gpu_util_pct"] for sample in sampled) > 50
    assert max(sample["gpu_mem_bytes"] for sample in sampled) == pytest.approx(max(seen["gpu_mem_bytes"]), rel=0.02)
    assert max(sample["power_watts"] for sample in sampled) > 0.7 * max(seen["power_watts"])
    # Clocks jump as soon as the load begins, so that only their range can be compared.
    for name, values in seen.items():
        assert all(min(values) * 0.9 <= sample[name] <= max(values) * 1.1 for sample in sampled), name
