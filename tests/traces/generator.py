"""Traces as Kineto writes them for a GPU, with a known breakdown."""

from __future__ import annotations

import io
import json
from typing import Any, NamedTuple


class Plan(NamedTuple):
    """A step of a rank: a compute kernel, an all-reduce half behind it, a copy, and idle time of both causes."""

    steps: int = 4
    kernels: int = 10
    """Compute kernels of a step, of `kernel_us` each without gaps."""
    kernel_us: float = 100.0
    exposed_us: float = 300.0
    hidden_us: float = 200.0
    copy_us: float = 50.0
    host_us: float = 80.0
    launch_us: float = 20.0
    late_us: float = 0.0
    """Further idle time before the all-reduce, in which the host does not launch: this rank arrives late."""
    waits_us: float = 0.0
    """Further time in the all-reduce, in which it waits for another rank."""

    @property
    def step_us(self) -> float:
        busy = self.kernels * self.kernel_us + self.exposed_us + self.copy_us + self.waits_us
        return busy + self.host_us + self.launch_us + self.late_us


def events(plan: Plan, rank: int, clock_us: float = 0.0, first_step: int = 0) -> list[dict[str, Any]]:
    """Return the events of a rank; its clock is ahead by `clock_us`."""
    written: list[dict[str, Any]] = []
    begin = 1_000_000.0 + clock_us
    correlation = 0

    def launched(at: float) -> int:
        nonlocal correlation
        correlation += 1
        written.append(
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": at, "dur": 2.0,
             "args": {"External id": correlation, "cbid": 211, "correlation": correlation}}
        )  # fmt: skip
        return correlation

    def kernel(name: str, cat: str, at: float, dur: float, stream: int, launch: float, **more: Any) -> None:
        arguments = {"device": 0, "context": 1, "stream": stream, "correlation": launched(launch), **more}
        written.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": at, "dur": dur, "args": arguments}
        )

    for place in range(plan.steps):
        step, at = first_step + place, begin + place * plan.step_us
        written.append(
            {"ph": "X", "cat": "gpu_user_annotation", "name": f"ProfilerStep#{step}", "pid": 0, "tid": 7,
             "ts": at, "dur": plan.step_us - 1, "args": {"External id": step}}
        )  # fmt: skip
        at += plan.host_us
        first = at
        for index in range(plan.kernels):
            name = "sm90_xmma_gemm_bf16bf16_bf16f32" if index % 2 else "vectorized_elementwise_kernel<4, add>"
            kernel(name, "kernel", at, plan.kernel_us, 7, first if index == 0 else first + 1)
            at += plan.kernel_us
        at += plan.late_us
        kernel(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            "kernel",
            at - plan.hidden_us if not plan.late_us else at,
            plan.exposed_us + plan.waits_us + (plan.hidden_us if not plan.late_us else 0.0),
            24,
            at if plan.late_us else first + 2,
            **{
                "Collective name": "allreduce",
                "In msg nelems": 1 << 20,
                "Out msg nelems": 1 << 20,
                "Group size": 2,
                "dtype": "BFloat16",
                "Process Group Name": "0",
                "Seq": step,
            },
        )
        at += plan.exposed_us + plan.waits_us + plan.launch_us
        kernel("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy", at, plan.copy_us, 7, first + 3)
    return written


def document(plan: Plan, rank: int = 0, world_size: int = 2, clock_us: float = 0.0) -> dict[str, Any]:
    """Return the trace of a rank as one object."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
        "host_name": f"node-{rank}",
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": events(plan, rank, clock_us),
        "traceName": f"rank{rank}.json",
    }


def file_of(written: dict[str, Any], indent: int | None = 2) -> io.BytesIO:
    """Return a trace as a file, indented as Kineto does or compact."""
    return io.BytesIO(json.dumps(written, indent=indent).encode())
