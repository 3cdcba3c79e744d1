"""A plain PyTorch training with DistributedDataParallel and one planted cause of slow steps.

Run by tests/bench/tracemls.py under torchrun, with `tool` none, parlab or traceml; it prints its steps as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

TOOL, CAUSE, STEPS, RUN = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
WARM_UP = 5
WIDTH, LAYERS, BATCH = 256, 4, 128
LOAD_S, SLOW_S = 0.15, 0.12
KEPT_BYTES = 8 << 20
EVERY, CHECKPOINT_MIB = 4, 64


def main() -> None:
    """Train; the first rank prints the time of its steps and of its processor."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    batch, width, layers = (1, 1_024, LAYERS) if CAUSE == "batch" else (BATCH, WIDTH, LAYERS)
    data = TensorDataset(torch.randn(batch * STEPS, width), torch.randn(batch * STEPS, width))
    loader = DataLoader(data, batch_size=batch, collate_fn=_collate)
    module = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    if CAUSE == "rank" and rank == 1:
        module[0].register_forward_pre_hook(lambda *_: time.sleep(SLOW_S))
    model = torch.nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with _tool() as tool, tempfile.TemporaryDirectory() as folder:
        times = _train(tool, model, optimizer, loader, Path(folder))
    if rank == 0:
        print(json.dumps({"steps_s": times[0], "processor_s": times[1]}), flush=True)
    dist.destroy_process_group()


def _collate(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    if CAUSE == "loading":
        time.sleep(LOAD_S)
    inputs, targets = zip(*rows, strict=True)
    return torch.stack(inputs), torch.stack(targets)


def _train(tool: Any, model: Any, optimizer: Any, loader: Any, folder: Path) -> tuple[list[float], float]:
    """Return the time of each step after the warm-up, and the time of the processor in all of them (s)."""
    held, steps_s = [], []
    began, used = time.perf_counter(), 0.0
    for step, (inputs, targets) in enumerate(tool.batches(loader)):
        with tool.step(model):
            with tool.phase("forward"):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
            with tool.phase("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
            with tool.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            if CAUSE == "memory":
                held.append(torch.ones(KEPT_BYTES // 4))
                time.sleep(0.05)
            if CAUSE == "checkpoint" and step % EVERY == 0:
                with tool.phase("checkpoint"):
                    _save(model, folder)
        tool.log(loss.item(), step)
        now = time.perf_counter()
        if step < WARM_UP:
            used = time.process_time()
        else:
            steps_s.append(now - began)
        began = now
    return steps_s, time.process_time() - used


def _save(model: Any, folder: Path) -> None:
    """Write a checkpoint to the disk, as large as that of a larger model."""
    state = {**model.state_dict(), "rest": torch.zeros(CHECKPOINT_MIB << 18)}
    with (folder / "checkpoint.pt").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


class _None:
    """No tool."""

    def batches(self, loader: Any) -> Any:
        return loader

    def step(self, _model: Any) -> Any:
        return contextlib.nullcontext()

    def phase(self, _name: str) -> Any:
        return contextlib.nullcontext()

    def log(self, loss: float, step: int) -> None:
        """Record nothing."""


class _Parlab(_None):
    """parlab's client, as docs/logging.md describes it for plain PyTorch."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.batches, self.phase = run.batches, run.phase  # type: ignore[method-assign]

    def log(self, loss: float, step: int) -> None:
        self._run.log({"train/loss": loss}, step=step)


class _TraceMl(_None):
    """TraceML, which takes the phases from the module, the optimizer and the data loader by itself."""

    def __init__(self, traceml: Any) -> None:
        self._traceml = traceml

    def step(self, model: Any) -> Any:
        return self._traceml.trace_step(model.module)


@contextlib.contextmanager
def _tool() -> Any:
    if TOOL == "parlab":
        import parlab

        with parlab.init("Plain scripts", name=CAUSE, run_id=RUN) as run:
            yield _Parlab(run)
    elif TOOL == "traceml":
        import traceml_ai as traceml  # type: ignore[import-not-found]  # in an environment of its own

        traceml.init(mode="auto")
        yield _TraceMl(traceml)
    else:
        yield _None()


if __name__ == "__main__":
    main()
