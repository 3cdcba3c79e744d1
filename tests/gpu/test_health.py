"""A health sweep on one GPU and on the CPU: the same rates, and on the GPU also the way from the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.started import run_engine
from tests.gpu.devices import GPU


@pytest.mark.parametrize("device", [GPU])
def test_a_sweep_of_one_gpu_measures_matrix_memory_and_the_way_from_the_host(device: str, tmp_path: Path) -> None:
    train = {"iterations": 3, "warmup_steps": 1}
    data = {"parallel": {"engine": "health"}, "train": train, "cluster": {"device": device}}
    output = run_engine(data, tmp_path)
    assert output.code == 0, output.text
    steps = output.events("step")
    assert len(steps) == 3
    for step in steps:
        assert {name for name in step if name.startswith("health/")} == {
            "health/matrix",
            "health/memory",
            "health/host",
        }
        assert step["health/matrix"] > 1e12
        assert step["health/memory"] > step["health/host"] > 1e8
