"""Timers and memory meters."""

from __future__ import annotations

import errno
import resource
import time
from pathlib import Path

import pytest
import torch

from runners.engines.process import memory
from runners.engines.process.memory import ProcessMemory, is_out_of_memory, memory_meter, memory_shortage
from runners.engines.process.timers import NO_MICRO_BATCH, Timers

MIB = 2**20
DEVICES = [torch.device("cpu"), *([torch.device("cuda", 0)] if torch.cuda.is_available() else [])]
CPU = DEVICES[0]


def test_timers_accumulate_and_operations_are_in_order_within_the_step() -> None:
    timers = Timers(CPU)
    for _step in range(2):  # the second step must not include the first
        timers.begin_step()
        for k in range(3):
            with timers.span("forward-compute", k):
                time.sleep(0.01)
        with timers.span("optimizer"):
            time.sleep(0.02)
        times = timers.finish_step()
    assert list(times.timers_s) == ["forward-compute", "optimizer"]
    assert 0.03 <= times.timers_s["forward-compute"] < times.step_time_s - 0.02
    assert [operation[:2] for operation in times.operations] == [
        ("forward-compute", 0),
        ("forward-compute", 1),
        ("forward-compute", 2),
        ("optimizer", NO_MICRO_BATCH),
    ]
    edges = [edge for operation in times.operations for edge in operation[2:]]
    assert edges == sorted(edges)
    assert edges[0] >= 0
    assert edges[-1] <= times.step_time_s


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_timer_waits_for_the_work_it_measures(device: torch.device) -> None:
    timers = Timers(device)
    matrix = torch.rand(1500, 1500, device=device)
    for _step in range(2):
        timers.begin_step()
        with timers.span("forward-compute", 0):
            for _ in range(4):
                matrix = matrix @ matrix / 1500
        times = timers.finish_step()
    assert times.timers_s["forward-compute"] > 0.5 * times.step_time_s


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_the_peak_is_that_of_the_step_and_not_of_an_earlier_one(device: torch.device) -> None:
    meter = memory_meter(device)
    meter.begin_step()
    before = meter.now()
    del_me = torch.ones(64 * MIB // 4, device=device)
    assert meter.now() - before == pytest.approx(64 * MIB, rel=0.2)
    del del_me
    assert meter.peak() - before == pytest.approx(64 * MIB, rel=0.2)
    assert meter.now() - before < 20 * MIB
    meter.begin_step()
    assert meter.peak() - before < 20 * MIB


def test_a_peak_that_cannot_be_reset_is_that_since_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "CLEAR_REFS", tmp_path / "no" / "such" / "file")
    meter = ProcessMemory()
    assert meter.source == "process resident, peak since start"
    meter.begin_step()
    assert meter.peak() == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 >= meter.now() * 0.9


@pytest.mark.parametrize(
    ("error", "requested"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has"), 3 * 2**29),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1234 bytes. Error"), 1234),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), None),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), None),
        (MemoryError(), None),
    ],
)
def test_out_of_memory_errors_of_every_library_are_recognized(error: Exception, requested: int | None) -> None:
    assert is_out_of_memory(error)
    shortage = memory_shortage(error, CPU)
    assert shortage.requested_bytes == requested
    assert shortage.free_bytes is not None
    assert shortage.total_bytes is not None
    assert 0 < shortage.free_bytes < shortage.total_bytes


@pytest.mark.parametrize(
    "error", [RuntimeError("Connection closed by peer"), OSError(errno.ENOSPC, "full"), ValueError()]
)
def test_other_errors_are_not_out_of_memory(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_torchs_own_error_is_recognized() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(raised.value)
    assert memory_shortage(raised.value, CPU).requested_bytes == 2**60
