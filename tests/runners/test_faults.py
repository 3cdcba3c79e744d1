"""Faults of hardware: what NVML, the kernel's log and sysfs say of them, and what makes a node unusable."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from runners.supervisor.supervise import Supervisor
from runners.telemetry import faults
from runners.telemetry.faults import Fault, kernel_lines, rdma_faults, xid_faults
from tests.runners.conftest import NVML, ROOT
from tests.runners.supervised import Prepare, Supervise, supervise

__all__ = ["supervise"]

HEALTHY: dict[str, Any] = {
    "name": "H100",
    "memory": 1 << 36,
    "ecc_errors": 0,
    "remapped": [0, 0, 0, 0],
    "links": [1, 1, 1, 1],
}


def check(tmp_path: Path, *gpus: dict[str, Any], **environment: str) -> tuple[int, list[str]]:
    """Run the check as Slurm does; return its exit code and lines."""
    listed = [{**HEALTHY, "uuid": f"GPU-{index}", **gpu} for index, gpu in enumerate(gpus)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "runners.telemetry.faults", "--state", str(tmp_path / "seen")),
            *("--kernel-log", str(tmp_path / "kmsg"), "--rdma", str(tmp_path / "rdma")),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{NVML}:{ROOT}", "FAKE_GPUS": json.dumps(listed), **environment},
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(
    ("gpu", "line"),
    [
        ({"ecc_errors": 2}, "GPU 1: 2 uncorrectable ECC errors since its driver was loaded"),
        ({"remapped": [0, 3, 0, 1]}, "GPU 1: a row of its memory could not be remapped; replace it"),
        ({"links": [1, 1, 0, 1]}, "GPU 1: 3 of 4 NVLinks are active"),
        ({"is_lost": True}, "GPU 1: the driver has lost it; it needs a reset"),
    ],
)
def test_a_fault_of_one_gpu_makes_the_node_unusable(tmp_path: Path, gpu: dict[str, Any], line: str) -> None:
    assert check(tmp_path, {}, gpu) == (1, [line])


def test_a_row_that_waits_to_be_remapped_is_noted(tmp_path: Path) -> None:
    code, lines = check(tmp_path, {"remapped": [0, 1, 1, 0]})
    assert (code, lines) == (0, ["noted: GPU 0: a row of its memory waits to be remapped; reset it"])


def test_recoveries_of_nvlinks_are_noted(tmp_path: Path) -> None:
    code, lines = check(tmp_path, {"link_recoveries": 3})
    assert (code, lines) == (0, ["noted: GPU 0: its NVLinks have recovered from errors 12 times"])


def test_healthy_gpus_and_boards_with_unused_links_have_no_fault(tmp_path: Path) -> None:
    assert check(tmp_path, {}, {}) == (0, [])
    assert check(tmp_path, {"links": [1, 1, 0, 0]}, {"links": [0, 0, 1, 1]}) == (1, [
        "GPU 0: 2 of 4 NVLinks are active",
        "GPU 1: 2 of 4 NVLinks are active",
    ])  # fmt: skip
    (tmp_path / "seen").unlink()
    assert check(tmp_path, {"links": [1, 1, 0, 0]}, {"links": [0, 0, 1, 1]}) == (0, [])
    assert check(tmp_path, {"lacks": [], "links": []}, {"links": []}) == (1, [
        "GPU 0: 0 of 2 NVLinks are active",
        "GPU 1: 0 of 2 NVLinks are active",
    ])  # fmt: skip


def test_a_driver_that_does_not_answer_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "ANSWER_S", 0.5)
    monkeypatch.setenv("PYTHONPATH", str(NVML))
    monkeypatch.setattr(faults, "_ROOT", f"{NVML}:{ROOT}")
    monkeypatch.setenv("FAKE_GPUS", "[]")
    monkeypatch.setenv("FAKE_HANGS", "1")
    assert faults.read_faults() == [
        Fault("driver", "driver", "the driver of the GPUs has not answered within 0.5 s", True)
    ]


def test_a_machine_without_driver_and_devices_has_no_fault(tmp_path: Path) -> None:
    assert faults.gpu_faults({}) == []
    assert rdma_faults(tmp_path, {}) == []


def xids(*records: tuple[float, str]) -> list[tuple[str, bool]]:
    return [(str(fault), fault.is_fatal) for fault in xid_faults(records, now=100_000.0, booted=0.0)]


def test_xids_of_hardware_count_and_those_of_programs_do_not() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): {}, pid=1234, name=python, what it is"
    assert xids((99_000, line.format(79)), (99_001, line.format(79))) == [
        ("GPU at 0000:3b:00: XID 79: the GPU has fallen off the bus, 2 times", True)
    ]
    assert xids((99_000, line.format(94))) == [("GPU at 0000:3b:00: XID 94: contained memory error", False)]
    assert xids((99_000, line.format(13)), (99_000, line.format(31)), (99_000, "usb 1-1: new device")) == []
    assert xids((1_000, line.format(79))) == [], "more than a day ago"


def test_the_log_of_the_kernel_is_read_in_its_own_format(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("4,1502,5140900,-;NVRM: Xid (PCI:0000:3b:00): 48, pid=7\n SUBSYSTEM=pci\n6,1503,6000000,-;next\n")
    assert list(kernel_lines(path)) == [(5.1409, "NVRM: Xid (PCI:0000:3b:00): 48, pid=7"), (6.0, "next")]
    assert list(kernel_lines(tmp_path / "none")) == []


def port(root: Path, state: str, phys_state: str, **counters: int) -> None:
    directory = root / "mlx5_0" / "ports" / "1"
    (directory / "counters").mkdir(parents=True, exist_ok=True)
    (directory / "state").write_text(f"{state}\n")
    (directory / "phys_state").write_text(f"{phys_state}\n")
    for name, count in counters.items():
        (directory / "counters" / name).write_text(f"{count}\n")


def test_a_port_that_was_active_and_is_down_is_a_fault_and_an_unused_one_is_none(tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    port(tmp_path, "1: DOWN", "3: Disabled")
    assert rdma_faults(tmp_path, seen) == []
    port(tmp_path, "4: ACTIVE", "5: LinkUp", link_downed=0, symbol_error=12)
    assert rdma_faults(tmp_path, seen) == []
    port(tmp_path, "1: DOWN", "2: Polling")
    assert rdma_faults(tmp_path, seen) == [Fault("mlx5_0 port 1", "rdma", "its link is Polling", True)]


def test_nodes_that_share_a_state_directory_do_not_answer_for_each_other(
    tmp_path: Path, prepared: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    supervisor = Supervisor(prepared("", root=tmp_path / "runs"))
    states = list[Path]()

    def failed_check(state: Path) -> str:
        states.append(state)
        return ""

    monkeypatch.setattr(faults, "failed_check", failed_check)
    for host, state in (("a", "4: ACTIVE"), ("b", "1: DOWN")):
        monkeypatch.setattr(socket, "gethostname", lambda: host)  # noqa: B023
        port(tmp_path, state, "3: Disabled")
        supervisor._failed_check()
        seen = faults._read_seen(states[-1])
        assert rdma_faults(tmp_path, seen) == [], "on b it was never active"
        states[-1].write_text(json.dumps(seen))


def test_errors_of_a_cable_are_noted(tmp_path: Path) -> None:
    port(tmp_path, "4: ACTIVE", "5: LinkUp", link_downed=3, symbol_error=5_000)
    assert [(fault.text, fault.is_fatal) for fault in rdma_faults(tmp_path, {})] == [
        ("link_downed is 3", False),
        ("symbol_error is 5000", False),
    ]


def test_the_check_of_a_node_ends_in_seconds(tmp_path: Path) -> None:
    begun = time.monotonic()
    check(tmp_path, *[{}] * 8)
    assert time.monotonic() - begun < 20


def test_a_run_that_failed_on_a_faulty_gpu_names_the_fault(prepared: Prepare, supervise: Supervise) -> None:
    run = prepared("raise ValueError('no good')", gpus=[{"uuid": "GPU-0"}])
    gpus = json.dumps([{**HEALTHY, "uuid": "GPU-0", "ecc_errors": 1}])
    final = supervise(run, PYTHONPATH=f"{NVML}:{ROOT}", FAKE_GPUS=gpus).ends()
    assert final.reason.startswith("ValueError: no good (exit code 1); the node failed its health check: GPU 0: 1 unc")


@pytest.mark.slow
def test_xids_of_nvml_are_in_the_log_and_in_the_reason(prepared: Prepare, supervise: Supervise) -> None:
    script = "import time; time.sleep(2.5); raise ValueError('no good')"
    run = prepared(script, gpus=[{"uuid": "GPU-0"}, {"uuid": "GPU-1"}], first_rank=4)
    listed = [{**HEALTHY, "uuid": "GPU-0"}, {**HEALTHY, "uuid": "GPU-1", "xids": [31, 79, 79]}]
    supervised = supervise(run, PYTHONPATH=f"{NVML}:{ROOT}", FAKE_GPUS=json.dumps(listed))
    assert supervised.ends().reason == (
        "ValueError: no good (exit code 1); the node failed its health check:"
        " GPU of rank 5: XID 79: the GPU has fallen off the bus"
    )
    lines = [line for line in supervised.output().decode().splitlines() if line.startswith("parlab: GPU")]
    assert [line.partition("XID ")[2][:2] for line in lines] == ["31", "79", "79"]
