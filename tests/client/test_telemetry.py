"""Telemetry of the client: processes and network from /proc, GPUs through NVML's functions."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from typing import Any

import pynvml
import pytest

from parlab.client import nvml, telemetry
from parlab.client.launch import launch
from parlab.lab.models import Run
from parlab.series import store
from tests.client.conftest import Script, ended
from tests.patience import wait_for

REPORTING = """
import parlab, sys, time
run = parlab.init("Telemetry", telemetry=None if len(sys.argv) < 2 else sys.argv[1] == "on")
run.log({"loss": 1.0}, step=7)
print("ready", flush=True)
sys.stdin.readline()
run.finish()
"""


class FakeNvml:
    """What a driver with two GPUs answers; the second one supports only utilisation."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, function: str) -> Any:
        def answer(*arguments: Any) -> int:
            self.calls.append(function)
            return self._answer(function, [getattr(argument, "_obj", argument) for argument in arguments])

        return answer

    def _answer(self, function: str, arguments: list[Any]) -> int:
        if function in ("nvmlInit_v2", "nvmlShutdown"):
            return 0
        if function == "nvmlDeviceGetCount_v2":
            arguments[0].value = 2
            return 0
        if function.startswith("nvmlDeviceGetHandle"):
            index = {0: 0, 1: 1, b"GPU-a": 0}.get(arguments[0].value)
            if index is None:
                return 6  # not found
            arguments[1].value = 100 + index
            return 0
        if function == "nvmlSystemGetDriverVersion":
            arguments[0].value = b"570.1"
            return 0
        if function in ("nvmlDeviceGetName", "nvmlDeviceGetUUID"):
            arguments[1].value = b"NVIDIA H100" if function.endswith("Name") else b"GPU-a"
            return 0
        if function == "nvmlDeviceGetMemoryInfo" and arguments[0].value == 100:
            arguments[1].total = 80 << 30
            return 0
        if function == "nvmlDeviceGetUtilizationRates":
            arguments[1].gpu, arguments[1].memory = 55, 12
            return 0
        if arguments[0].value == 101:
            return 3  # not supported
        if function == "nvmlDeviceGetMemoryInfo_v2":
            assert arguments[1].version == pynvml.nvmlMemory_v2
            arguments[1].used = 5 << 30
            return 0
        values = {"nvmlDeviceGetPowerUsage": 250_500, "nvmlDeviceGetTemperature": 61, "nvmlDeviceGetClockInfo": 1980}
        arguments[-1].value = values[function]
        return 0


def test_counters_of_gpus_have_the_names_and_units_of_engines() -> None:
    library = FakeNvml()
    with nvml.opened(lambda _: library) as opened:
        assert opened is not None
        assert opened.count() == 2
        first, by_uuid, absent = opened.device("1"), opened.device("GPU-a"), opened.device("GPU-x")
        assert first is not None
        assert by_uuid is not None
        assert absent is None
        assert by_uuid.counters() == {
            "gpu_util_pct": 55.0,
            "memory_util_pct": 12.0,
            "gpu_mem_bytes": 5 * 2**30,
            "power_watts": 250.5,
            "temperature_celsius": 61.0,
            "sm_clock_hz": 1.98e9,
            "memory_clock_hz": 1.98e9,
        }
        assert first.counters() == {"gpu_util_pct": 55.0, "memory_util_pct": 12.0}
        library.calls.clear()
        first.counters()
        assert library.calls == ["nvmlDeviceGetUtilizationRates"]  # what is not supported is asked for once
    assert library.calls[-1] == "nvmlShutdown"


def test_a_number_of_ranks_that_changes_within_a_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "EVERY_S", 0.01)
    environ, lines = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, list[bytes]()
    sampled = telemetry.of_rank(lines.append, launch(environ), environ)
    sampled.start()
    environ["WORLD_SIZE"] = "1"
    wait_for(lambda: b'"elastic_ranks":1' in b"".join(lines), "the change")
    sampled.stop()


def test_the_gpus_of_a_node_and_its_driver_are_described_like_those_of_engines() -> None:
    with nvml.opened(lambda _: FakeNvml()) as opened:
        assert opened is not None
        described = telemetry.hardware(opened, [opened.device("0"), None])
    first = {"name": "NVIDIA H100", "uuid": "GPU-a", "memory_bytes": 80 * 2**30}
    assert described["gpus"][0] == {"index": 0, **first}
    assert (len(described["gpus"]), described["gpus_used"], described["driver"]) == (2, [first], "570.1")


def test_structures_match_those_of_nvidias_own_binding() -> None:
    for own, reference in (
        (nvml.Utilization, pynvml.c_nvmlUtilization_t),
        (nvml.Memory, pynvml.c_nvmlMemory_v2_t),
        (nvml.Memory1, pynvml.c_nvmlMemory_t),
    ):
        assert ctypes.sizeof(own) == ctypes.sizeof(reference)
        assert [name for name, *_ in own._fields_] == [name for name, *_ in reference._fields_]
    assert pynvml.nvmlMemory_v2 == nvml.MEMORY_VERSION


def test_a_machine_without_a_driver_has_no_gpus() -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    with nvml.opened(missing) as library:
        assert library is None


@pytest.mark.parametrize(
    ("visible", "local_rank", "local_size", "expected"),
    [
        ("0,1,2,3", 2, 4, ["2"]),
        ("GPU-a, GPU-b", 1, 2, ["GPU-b"]),
        ("3", 5, 8, ["3"]),  # Slurm shows each task only its own
        ("0,1", 0, 0, ["0", "1"]),
        ("0,-1,2", 0, 0, ["0"]),
        ("", 0, 1, []),
    ],
)
def test_a_rank_samples_the_gpu_that_cuda_shows_it(
    visible: str, local_rank: int, local_size: int, expected: list[str]
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": visible}
    assert telemetry.visible_gpus(environ, local_rank=local_rank, local_size=local_size) == expected


def test_one_rank_of_each_node_samples_processes_and_network() -> None:
    environ = {"RANK": "8", "WORLD_SIZE": "16", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1"}
    lines: list[bytes] = []
    sampling = telemetry.of_rank(lines.append, launch(environ), environ)
    sampling.start()
    wait_for(lambda: lines, "a sample")
    sampling.stop()
    sample = json.loads(lines[0])
    assert (sample["rank"], sample["event"]) == (-2, "telemetry")
    assert sample["memory_bytes"] > 10 << 20
    other = telemetry.of_rank(lines.append, launch({**environ, "LOCAL_RANK": "1"}), environ)
    assert other._root is None


def test_descendants_count_and_ended_processes_do_not() -> None:
    processes = telemetry.Processes(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "x = bytearray(200 << 20); print('up', flush=True); input()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    memory, percent = processes.sample()
    child.kill()
    child.communicate()
    assert memory - processes.sample()[0] > 150 << 20
    assert percent > 0


@pytest.mark.parametrize(("choice", "variable", "expected"), [
    (None, "1", True), (None, "0", False), (True, "0", True), (False, "1", False), (None, "off", False),
])  # fmt: skip
def test_the_argument_comes_before_the_variable(choice: bool | None, variable: str, expected: bool) -> None:
    assert telemetry.is_wanted({"PARLAB_TELEMETRY": variable}, choice) is expected


@pytest.mark.django_db(transaction=True)
def test_samples_of_a_script_are_series_of_its_node_beside_its_metrics(environ: dict[str, str], start: Script) -> None:
    script = start(REPORTING, environ)
    wait_for(
        lambda: (
            Run.objects.exists()
            and len(store.read(Run.objects.get().current_attempt().pk, "memory_bytes", rank=-1).steps) >= 2
        ),
        "two samples",
    )
    assert script.stdin is not None
    script.stdin.write("end\n")
    ended(script)
    run = Run.objects.get()
    samples = store.read(run.current_attempt().pk, "memory_bytes", rank=-1)
    assert set(samples.steps.tolist()) == {7}
    assert samples.values.min() > 10 << 20
    assert list(run.tracked.metrics.values_list("key", flat=True)) == ["loss"]
    assert "memory_bytes" not in run.summary.get("sources", {})


@pytest.mark.django_db(transaction=True)
def test_without_telemetry_a_script_reports_only_what_it_logs(environ: dict[str, str], start: Script) -> None:
    script = start(REPORTING, environ, "off")
    assert script.stdout is not None
    script.stdout.readline()
    wait_for(lambda: Run.objects.exists() and Run.objects.get().tracked.metrics.exists(), "the metric")
    assert script.stdin is not None
    script.stdin.write("end\n")
    ended(script)
    assert {info.metric for info in store.metrics(Run.objects.get().current_attempt().pk)} == {"loss"}
