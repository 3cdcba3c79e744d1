"""The recorder of steps: only chosen steps and ranks, with the phases of the timers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from parlab.traces.stored import analyse
from runners.config import RunConfig
from runners.engines.process.profiling import StepRecorder
from runners.engines.process.timers import Timers
from runners.supervisor.files import DIRECTORY, trace_name


def train(config: RunConfig, rank: int) -> None:
    timers, recorder = Timers(torch.device("cpu")), StepRecorder(config, rank, torch.device("cpu"))
    weights = torch.ones(64, 64)
    for number in range(1, config.train.iterations + 1):
        with recorder.step(number):
            timers.begin_step()
            with timers.span("forward-compute", 0):
                weights @ weights
            timers.finish_step()
        # Between two recorded steps the next one renews it.
        assert Timers.recorder is None


@pytest.mark.slow
def test_chosen_steps_of_chosen_ranks_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / DIRECTORY).mkdir()
    data = {"train": {"iterations": 5}, "parallel": {"engine": "megatron", "data_parallel_size": 2}}
    config = RunConfig.model_validate({**data, "profile": {"steps": [3, 4], "ranks": [1]}})
    train(config, 0)
    assert not list((tmp_path / DIRECTORY).iterdir())
    train(config, 1)
    assert [path.name for path in (tmp_path / DIRECTORY).iterdir()] == [trace_name(1)]
    with (tmp_path / DIRECTORY / trace_name(1)).open("rb") as file:
        analysis = analyse(file)
    assert [step.step for step in analysis.steps] == [3, 4]
    assert "matrix product" in dict(analysis.classes)
    assert not analysis.problems
