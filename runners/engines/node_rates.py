"""Rates of the devices of this node and of the links between them, with which the planner replaces its constants.

`python -m runners.engines.node_rates` takes at most two minutes and prints JSON:

    {"device": "NVIDIA H100 80GB HBM3", "devices": 8, "torch": "2.13.0",
     "matrix": {"bf16": FLOP/s, "fp32": FLOP/s}, "attention": FLOP/s, "memory": B/s, "host": B/s,
     "all_reduce": {ranks: [[bytes, seconds], ...]}, "all_to_all": {ranks: [[bytes, seconds], ...]}}

`matrix` are products of large matrices of random values. `attention` is torch's causal attention, forward and backward,
without the scores that the mask excludes. `memory` counts the bytes that a copy reads and writes, `host` those that
come from the memory of the host. All devices measure at once, and the slowest counts. Bytes of an all-to-all are those
that a rank sends, its own part included. Without a GPU the ranks are processes; matrix, attention and host are missing.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import scaled_dot_product_attention

from runners.engines.health import CPU, GPU, Probe, Sizes
from runners.engines.process.process_group import barrier
from runners.supervisor.processes import die_with

WITHIN = timedelta(seconds=120)
ATTENTION = (4, 16, 4096, 128)
"""Batch, heads, sequence length and head size of the attention that is measured."""
BACKWARD = 2.5
"""FLOPs of the backward pass relative to the forward pass: two products are computed again."""
MIB = 1 << 20
_SIZES = {"cuda": (MIB // 16, MIB, 16 * MIB, 256 * MIB), "cpu": (MIB // 16, MIB // 2, 4 * MIB, 16 * MIB)}
_FEW, _MANY, _BATCHES = 3, 20, 5
_MOST_PROCESSES = 8
_FREE_SHARE = 0.9
"""Share of a GPU's memory that is free while no other program uses it."""


class Rates(Probe):
    """Rates of one device that a plan needs beside those of a health sweep."""

    def __init__(self, device: torch.device, sizes: Sizes) -> None:
        super().__init__(device, sizes)
        self._generator = torch.Generator(device).manual_seed(1)

    def matrix(self, kind: torch.dtype) -> float:
        """Return the FLOP/s of a product of large matrices of random values."""
        size = self._sizes.matrix if kind.itemsize < 4 else self._sizes.matrix // 2
        a, b = (self._random(size, size, kind=kind) for _ in range(2))
        out = torch.empty_like(a)
        return 2 * size**3 / self._steady(lambda: torch.mm(a, b, out=out))

    def attention(self) -> float:
        """Return the FLOP/s of causal attention, forward and backward; scores that the mask excludes do not count."""
        batch, heads, length, head = ATTENTION
        query, key, value = (self._random(*ATTENTION, kind=torch.bfloat16).requires_grad_() for _ in range(3))

        def passes() -> None:
            result = scaled_dot_product_attention(query, key, value, is_causal=True)
            torch.autograd.grad(result, (query, key, value), result)

        forward = 4 * batch * heads * length**2 * head / 2
        return (1 + BACKWARD) * forward / self._steady(passes)

    def _random(self, *shape: int, kind: torch.dtype) -> torch.Tensor:
        return torch.randn(*shape, dtype=kind, device=self._device, generator=self._generator)


def measure() -> dict[str, Any]:
    """Measure with one process per GPU, or without GPUs with one per core up to 8."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    ranks = gpus or min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)
    with tempfile.TemporaryDirectory(prefix="parlab-rates-") as directory:
        spawn(_measure_rank, args=(ranks, gpus > 0, directory, os.getpid()), nprocs=ranks)  # type: ignore[no-untyped-call]
        measured: dict[str, Any] = json.loads((Path(directory) / "rates.json").read_text())
    name = torch.cuda.get_device_name(0) if gpus else "CPU process"
    return {"device": name, "devices": ranks, "torch": torch.__version__, **measured}


def _measure_rank(rank: int, ranks: int, is_gpu: bool, directory: str, parent: int) -> None:
    die_with(parent)()  # which may have died while this process imported torch
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if is_gpu else torch.device("cpu")
    if is_gpu:
        _check_that_free(device)
    dist.init_process_group(
        "nccl" if is_gpu else "gloo",
        init_method=f"file://{directory}/store",
        rank=rank,
        world_size=ranks,
        timeout=WITHIN,
        device_id=device if is_gpu else None,
    )
    measured = _slowest(_device_rates(Rates(device, GPU if is_gpu else CPU), is_gpu=is_gpu), device)
    for name in ("all_reduce", "all_to_all"):
        measured[name] = _curves(name, rank, ranks, device)
    if rank == 0:
        (Path(directory) / "rates.json").write_text(json.dumps(measured))
    barrier(device)
    dist.destroy_process_group()


def _check_that_free(device: torch.device) -> None:
    """Raise RuntimeError if another program uses the GPU: both would measure less than there is."""
    free, total = torch.cuda.mem_get_info(device)
    if free < _FREE_SHARE * total:
        raise RuntimeError(f"{device} is in use: {(total - free) / 2**30:.1f} GiB of its memory are taken")


def _device_rates(probe: Rates, *, is_gpu: bool) -> dict[str, float]:
    rates = {"memory": probe.memory()}
    if is_gpu:
        rates |= {"bf16": probe.matrix(torch.bfloat16), "fp32": probe.matrix(torch.float32)}
        rates |= {"attention": probe.attention(), "host": probe.host()}
    return rates


def _slowest(rates: dict[str, float], device: torch.device) -> dict[str, Any]:
    """Return the lowest rate of all ranks, those of products under `matrix`."""
    lowest = torch.tensor(list(rates.values()), dtype=torch.float64, device=device)
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    result: dict[str, Any] = dict(zip(rates, lowest.tolist(), strict=True))
    matrix = {name: result.pop(name) for name in ("bf16", "fp32") if name in result}
    return result | ({"matrix": matrix} if matrix else {})


def _curves(name: str, rank: int, ranks: int, device: torch.device) -> dict[str, list[list[float]]]:
    """Return the times of an operation by size, for two ranks and for all."""
    curves = {}
    for count in sorted({2, ranks}):
        if count > ranks:
            continue
        group = dist.new_group(list(range(count)))
        if rank < count:
            curves[str(count)] = [[size, _time(name, size, count, group, device)] for size in _SIZES[device.type]]
        barrier(device)
    return curves


def _time(name: str, size: int, ranks: int, group: Any, device: torch.device) -> float:
    """Return the time of an operation on `size` bytes: the fastest of several batches, since other load only adds."""
    values = torch.zeros(size // 4 // ranks * ranks, device=device)
    received = torch.empty_like(values) if name == "all_to_all" else values
    probe = Probe(device, CPU)

    def work() -> None:
        if name == "all_reduce":
            dist.all_reduce(values, group=group)
        else:
            dist.all_to_all_single(received, values, group=group)

    work()
    count = _MANY if size <= MIB else _FEW
    return min(_batch(probe, work, count, group, device) for _ in range(_BATCHES))


def _batch(probe: Probe, work: Callable[[], object], count: int, group: Any, device: torch.device) -> float:
    """Return the mean time of an execution; all ranks of the group begin together."""
    dist.all_reduce(torch.zeros(1, device=device), group=group)
    return probe.seconds(work, count)


if __name__ == "__main__":
    # The process must not outlive the daemon, which may have ended during the imports: it tells its process id.
    die_with(int(sys.argv[1]) if len(sys.argv) > 1 else os.getppid())()
    sys.stdout.write(json.dumps(measure()) + "\n")
