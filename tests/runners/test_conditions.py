"""What else decides the speed of a machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from runners.telemetry.conditions import conditions
from tests.runners.conftest import NVML, ROOT


def test_firmware_and_limits_are_read_from_the_kernel(tmp_path: Path) -> None:
    files = {
        "sys/class/dmi/id/bios_version": "2.19",
        "proc/cpuinfo": "processor\t: 0\nmicrocode\t: 0x2b000603\n",
        "sys/class/infiniband/mlx5_0/fw_ver": "28.39.1002",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "3800000",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "1",
        "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw": "350000000",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    state = conditions(tmp_path)
    assert state["kernel"] == platform.release()
    assert state["firmware"] == {"bios": "2.19", "microcode": "0x2b000603", "mlx5_0": "28.39.1002"}
    assert state["limits"] == {
        "cpu_governor": "performance", "cpu_clock_hz": 3.8e9, "cpu_turbo": "off", "cpu0_power_watts": 350.0,
    }  # fmt: skip


def test_a_machine_that_states_nothing_has_its_kernel(tmp_path: Path) -> None:
    assert set(conditions(tmp_path)) <= {"kernel", "nccl"}


def test_gpus_state_their_firmware_clocks_and_power() -> None:
    full = {"name": "NVIDIA H200", "uuid": "GPU-a", "vbios": "96.00.A1", "gsp": "575.57", "power_limit_mw": 600_000,
            "sm_mhz": 1980, "memory_mhz": 3201, "application_mhz": 1500, "locked_mhz": 1400, "ecc": 1}  # fmt: skip
    program = "import json; from runners.telemetry.gpus import conditions; print(json.dumps(conditions()))"
    environment = {**os.environ, "PYTHONPATH": str(NVML), "FAKE_GPUS": json.dumps([full, {"name": "x", "uuid": "b"}])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    firmware, limits = json.loads(done.stdout)
    assert firmware == {"gpu0_vbios": "96.00.A1", "gpu0_gsp": "575.57"}
    assert limits == {
        "gpu0_power_watts": 600.0, "gpu0_sm_clock_hz": 1.98e9, "gpu0_memory_clock_hz": 3.201e9,
        "gpu0_application_clock_hz": 1.5e9, "gpu0_locked_clock_hz": 1.4e9, "gpu0_ecc": 1.0,
    }  # fmt: skip
