"""What a node says of itself, and what a run's processes take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runners.telemetry import telemetry
from tests.patience import wait_for


def test_the_hardware_of_this_machine_is_described() -> None:
    machine = telemetry.hardware()
    assert machine["hostname"]
    assert machine["cpu_cores"] >= 1
    assert machine["memory_bytes"] > 1 << 28
    json.dumps(machine)


def test_gpus_are_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    lines = "0, NVIDIA H200, 143771, 575.57, GPU-a\n1, NVIDIA GB10, [N/A], 575.57, GPU-b\nan error message\n"
    tool.write_text(f"#!/bin/sh\nprintf '%s' '{lines}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    machine = telemetry.hardware()
    assert machine["driver"] == "575.57"
    assert machine["gpus"] == [
        {"index": 0, "name": "NVIDIA H200", "memory_bytes": 143771 << 20, "uuid": "GPU-a"},
        {"index": 1, "name": "NVIDIA GB10", "memory_bytes": None, "uuid": "GPU-b"},
    ]


def test_a_machine_without_nvidia_smi_has_no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert telemetry.hardware()["gpus"] == []


def test_the_environment_names_versions_without_importing_anything_heavy() -> None:
    program = (
        "import json, sys; from runners.telemetry import telemetry;"
        "print(json.dumps(telemetry.environment({'hostname': 'here'})), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    content, _, has_torch = done.stdout.rpartition(" ")
    environment = json.loads(content)
    assert environment["hostname"] == "here"
    assert environment["python"].startswith("3.11")
    assert environment["torch"].startswith("2.")
    assert has_torch == "False\n"


BUSY = "data = bytearray(64 << 20)\nprint('ready', flush=True)\nwhile True: pass"


def test_memory_and_processor_time_are_summed_over_the_process_tree() -> None:
    sampler = telemetry.Sampler()
    before, _ = sampler.sample()
    children = [subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        memory, _ = sampler.sample()

        def percent() -> float:
            time.sleep(0.3)
            return sampler.sample()[1]

        # Other tests want the processors too: now and then these two get their share.
        wait_for(lambda: percent() > 5, "the two are seen to be busy")
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert memory - before > 2 * (64 << 20)
    assert sampler.sample()[0] < before + (64 << 20)


def test_processes_below_processes_are_found_with_and_without_the_kernels_lists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    child = subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        processes = telemetry.descendants(os.getpid())
        assert child.pid in processes
        assert len(telemetry.descendants(child.pid)) == 1
        monkeypatch.setattr(telemetry, "_CHILDREN", tmp_path / "none")
        assert set(telemetry.descendants(os.getpid())) == set(processes)
    finally:
        child.communicate(b"\n")
    assert child.pid not in telemetry.descendants(os.getpid())


def test_a_sample_is_printed_as_an_event_of_the_node() -> None:
    line = telemetry.event_line(-1, 1700000000.1234, {"memory_bytes": 5, "cpu_pct": 1.5})
    assert line.startswith(b'{"parlab":1,')
    event = json.loads(line)
    assert (event["rank"], event["event"], event["memory_bytes"], event["cpu_pct"]) == (-1, "telemetry", 5, 1.5)
