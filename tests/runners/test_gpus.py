"""Which GPUs there are and which of them a run uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from runners.config import RunConfig
from runners.telemetry.gpus import used_by
from tests.runners.conftest import NVML, ROOT

FOUR = [{"index": n, "name": "NVIDIA H200", "memory_bytes": 143771 << 20, "uuid": f"GPU-{n}{n}aa-bb"} for n in range(4)]


def config(**sections: dict[str, Any]) -> RunConfig:
    parallel = {"engine": "megatron", "data_parallel_size": 2}
    return RunConfig.model_validate({"parallel": parallel, "train": {"global_batch_size": 16}, **sections})


def used(configuration: RunConfig, visible: str | None = None) -> list[str]:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return [gpu["uuid"][4:5] for gpu in used_by(configuration, FOUR, environment)]


def test_the_ranks_of_a_run_take_the_first_gpus() -> None:
    assert used(config()) == ["0", "1"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2,0,1", ["2", "0"]),
        ("GPU-33,GPU-1", ["3", "1"]),
        ("3, 1", ["3", "1"]),
        # What CUDA does not know ends its list: one GPU is too few for two ranks, which then run on the CPU.
        ("3,9,1", []),
        ("", []),
        ("-1", []),
    ],
)
def test_what_cuda_shows_to_the_run_counts(visible: str, expected: list[str]) -> None:
    assert used(config(), visible) == expected


def test_a_mig_device_is_named_by_its_own_id() -> None:
    gpus = used_by(config(parallel={"engine": "megatron"}), FOUR, {"CUDA_VISIBLE_DEVICES": "MIG-5f1c"})
    assert [gpu["uuid"] for gpu in gpus] == ["MIG-5f1c"]


def test_a_run_on_the_cpu_uses_none() -> None:
    assert used(config(cluster={"device": "cpu"})) == []


def test_more_ranks_than_gpus_run_on_the_cpu() -> None:
    eight = {"engine": "megatron", "data_parallel_size": 8}
    assert used(config(parallel=eight)) == []


def test_a_map_of_shards_names_its_gpus() -> None:
    shards = {"stage_0": {"shard_0": "GPU:3", "shard_1": "GPU:1"}}
    sharding = {"sharding_size": 2, "device_mapping": shards}
    train = {"global_batch_size": 2, "micro_batch_size": 2}
    assert used(config(parallel={"engine": "sharding"}, sharding=sharding, train=train)) == ["1", "3"]


def described(**environment: str) -> Any:
    program = "import json; from runners.telemetry import telemetry; print(json.dumps(telemetry.hardware()))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(NVML), "PATH": "/nowhere", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_hardware_names_gpus_and_driver_as_the_library_tells_them() -> None:
    shared = {"name": "NVIDIA GB10", "uuid": "GPU-b", "memory": 0, "lacks": ["memory"]}
    machine = described(FAKE_GPUS=json.dumps([{"name": "NVIDIA H200", "uuid": "GPU-a", "memory": 5 << 30}, shared]))
    assert machine["driver"] == "575.57.08"
    assert machine["gpus"] == [
        {"index": 0, "name": "NVIDIA H200", "memory_bytes": 5 << 30, "uuid": "GPU-a"},
        {"index": 1, "name": "NVIDIA GB10", "memory_bytes": None, "uuid": "GPU-b"},
    ]


def test_a_machine_without_the_library_has_no_gpus() -> None:
    assert described()["gpus"] == []
