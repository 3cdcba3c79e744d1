"""The rates that a node measures of one GPU are those of its data sheet, nearly."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from parlab.planner.job.hardware import find
from parlab.planner.job.measured import measured_device
from tests.engines.started import ROOT
from tests.gpu.devices import GPU
from tests.patience import TRAINING_S


@pytest.mark.parametrize("device", [GPU])
def test_a_gpu_measures_its_products_attention_and_memory(device: str) -> None:
    assert device == "cuda"
    command = [sys.executable, "-m", "runners.engines.node_rates"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TRAINING_S, check=False)
    assert done.returncode == 0, done.stderr
    rates = json.loads(done.stdout)
    assert rates["devices"] >= 1
    gpu = find(rates["device"])
    assert gpu is not None
    measured = measured_device(gpu, rates)
    assert measured.matmul_ceiling_flops is not None
    assert measured.attention_share is not None
    assert 0.5 < measured.matmul_ceiling_flops / gpu.peak_flops["bf16"] < 1
    assert 0.1 < measured.attention_share < 1
    assert 0.7 < measured.memory_bandwidth / gpu.memory_bandwidth < 1.2
    assert 1e9 < rates["host"] < rates["memory"]
