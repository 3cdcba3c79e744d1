"""Emulated passes, which sleep instead of computing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from runners.config import RunConfig
from runners.engines.process.process_group import Place, choose_device
from runners.engines.training.emulated import EmulatedPasses
from runners.engines.training.executor import Boundary
from runners.engines.training.stage import PipelineStage
from runners.schedules import Operation
from tests.conftest import SMALL


def config(forward_ms: Any = 2, backward_ms: Any = 4, **parallel: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": SMALL["model"] | {"num_layers": 4},
            "train": {**SMALL["train"], "compute": "emulated"},
            "parallel": {"pipeline_parallel_size": 1, **parallel},
            "emulation": {"forward_ms": forward_ms, "backward_ms": backward_ms, "optimizer_ms": 3},
        }
    )


def test_a_stage_takes_its_times_and_has_neither_weights_nor_loss() -> None:
    stage = PipelineStage(config())
    result = stage.train_step(1)
    timers = result.times.timers_s
    assert timers["forward-compute"] >= 4 * 0.002
    assert timers["backward-compute"] >= 4 * 0.004
    assert timers["optimizer"] >= 0.003
    assert result.loss is None
    assert stage.num_parameters == 0


def test_each_stage_has_its_time_and_halves_of_a_backward_pass_take_half(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("runners.engines.training.emulated.wait", waited.append)
    times = config(
        [1, 2, 3, 4], [10, 20, 30, 40], schedule="interleaved-1f1b", virtual_stages=2, pipeline_parallel_size=2
    )
    for rank, chunk in itertools.product((0, 1), (0, 1)):
        passes = EmulatedPasses(times, rank, Boundary((1, 2, 4), torch.float32))
        assert passes.forward(Operation("F", 0, chunk)).shape == (1, 2, 4)
        passes.backward(Operation("B", 0, chunk))
        passes.backward(Operation("I", 0, chunk))
        passes.backward(Operation("W", 0, chunk))
    forward = [0.001, 0.003, 0.002, 0.004]
    assert waited == pytest.approx([part for f in forward for part in (f, 10 * f, 5 * f, 5 * f)])


def test_missing_times_are_named_in_the_error() -> None:
    unresolved = RunConfig.model_validate(
        {"train": {"compute": "emulated"}, "emulation": {"source_run": "pipeline-schedules/1"}}
    )
    with pytest.raises(ValueError, match=r"emulation\.forward_ms is empty; set it"):
        EmulatedPasses(unresolved, 0, Boundary((1, 2, 4), torch.float32))


def test_emulated_passes_leave_gpus_to_other_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert choose_device(config(), Place()).type == "cpu"
