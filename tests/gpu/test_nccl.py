"""NCCL as the engines use it, with the one rank that one GPU allows, and the refusal of a second rank."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from runners.engines.allreduce import OPERATIONS, Exchange, time_exchange
from runners.engines.process.process_group import barrier, leave
from runners.engines.process.rendezvous import meet
from tests.engines.started import ROOT
from tests.gpu.devices import BOTH, GPU
from tests.gpu.test_engines import make_data
from tests.patience import TRAINING_S


@pytest.mark.parametrize("device_type", BOTH)
def test_every_collective_of_engine_allreduce_exchanges_correct_values(device_type: str, tmp_path: Path) -> None:
    device = torch.device("cuda", 0) if device_type == "cuda" else torch.device("cpu")
    store = meet(f"file://{tmp_path}/meeting", 0, 1, timedelta(seconds=60))
    backend = "nccl" if device_type == "cuda" else "gloo"
    dist.init_process_group(
        backend, store=store, rank=0, world_size=1, device_id=device if device_type == "cuda" else None
    )
    try:
        for name in OPERATIONS:
            if device_type == "cpu" and name == "point-to-point":
                continue  # gloo cannot send to its own rank
            exchange = Exchange(name, 1 << 20, 0, 1, torch.float32, device)
            timing = time_exchange(exchange, 6, 2, device)
            assert timing.wrong == 0, name
            assert timing.size == 1 << 20
            assert timing.time_s > 0
        barrier(device)
    finally:
        leave()


@pytest.mark.parametrize("device", [GPU])
def test_two_ranks_with_one_gpu_are_refused_before_nccl_hangs(device: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(make_data(device, "pipeline", parallel={"pipeline_parallel_size": 2})))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "runners.engines.pipeline", "--config", str(path)],
            cwd=ROOT,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [process.communicate(timeout=TRAINING_S)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [2, 2], outputs
    for output in outputs:
        assert "cluster.device: ranks 0 and 1 both use GPU" in output
        assert "its own LOCAL_RANK or CUDA_VISIBLE_DEVICES" in output
