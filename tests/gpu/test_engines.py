"""Every engine as a node starts it, on one GPU and on the CPU: losses equal the reference's."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from runners.config import RunConfig
from tests.engines.ranks import train_in_one_process
from tests.engines.started import Output, run_engine
from tests.gpu.devices import BOTH, CPU, GPU

MODEL = {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "sequence_length": 64, "vocab_size": 512}
TRAIN = {"global_batch_size": 8, "micro_batch_size": 2, "iterations": 5, "learning_rate": 1e-3}


PREFIX = {"attention_mask": "prefix", "prefix_length": 20}


def make_data(device: str, engine: str, model: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """Return a small configuration of one process; `sections` override the defaults."""
    train, parallel = TRAIN | sections.pop("train", {}), {"engine": engine} | sections.pop("parallel", {})
    whole = {"model": MODEL | (model or {}), "train": train, "parallel": parallel, "cluster": {"device": device}}
    return whole | sections


def assert_trains(output: Output, device: str, data: dict[str, Any], tolerance: float) -> None:
    """The run succeeded on the device, with the losses of the reference training on the CPU."""
    assert output.code == 0, output.text
    start = output.events("start")[0]
    assert start["device"] == ("cuda:0" if device == "cuda" else "cpu")
    assert start["memory"].startswith("cuda allocator" if device == "cuda" else "process resident")
    train = data["train"] | {"precision": "fp32", "recompute": "none"}
    reference = {"model": data["model"] | {"attention_backend": "sdpa"}, "train": train, "cluster": {"device": "cpu"}}
    expected = train_in_one_process(RunConfig.model_validate(reference), 5, torch.device("cpu")).losses
    assert output.losses() == pytest.approx(expected, abs=tolerance)
    for step in output.events("step"):
        assert 0 < step["memory_bytes"] <= step["memory_peak_bytes"] * 1.001


def twins(cases: Iterable[Any], on_cpu: Any) -> list[Any]:
    """Return every case on the GPU and one on the CPU; tests/engines covers the others on the CPU."""
    on_gpu = [pytest.param("cuda", case, marks=GPU.marks) for case in cases]
    return [*on_gpu, pytest.param("cpu", on_cpu, marks=CPU.marks)]


PIPELINES = {
    "fp32": ({}, 2e-4),
    "zb-h1": ({"parallel": {"schedule": "zb-h1"}}, 2e-4),
    "bf16": ({"train": {"precision": "bf16"}}, 5e-2),
    "prefix": ({"model": PREFIX}, 2e-4),
    "prefix, FlexAttention": ({"model": PREFIX | {"attention_backend": "flex"}}, 5e-4),
    "prefix, FlexAttention, bf16": (
        {"model": PREFIX | {"attention_backend": "flex"}, "train": {"precision": "bf16"}},
        5e-2,
    ),
}


@pytest.mark.parametrize(("device", "name"), twins(PIPELINES, "bf16"))
def test_pipeline(device: str, name: str, tmp_path: Path) -> None:
    sections, tolerance = PIPELINES[name]
    data = make_data(device, "pipeline", **json.loads(json.dumps(sections)))
    output = run_engine(data, tmp_path)
    assert_trains(output, device, data, tolerance)
    assert all(step["timers_s"]["forward-compute"] > 0 for step in output.events("step"))
    assert output.events("operations")


MEGATRONS = {
    "fp32": ({}, 2e-4),
    "bf16, full recompute": ({"train": {"precision": "bf16", "recompute": "full"}}, 5e-2),
    "zb-h1": ({"parallel": {"schedule": "zb-h1"}}, 2e-4),
    "prefix, FlexAttention": ({"model": PREFIX | {"attention_backend": "flex"}}, 5e-4),
    "fp16, selective recompute": ({"train": {"precision": "fp16", "recompute": "selective"}}, 5e-2),
}


@pytest.mark.parametrize(("device", "name"), twins(MEGATRONS, "fp16, selective recompute"))
def test_megatron(device: str, name: str, tmp_path: Path) -> None:
    sections, tolerance = MEGATRONS[name]
    data = make_data(device, "megatron", **json.loads(json.dumps(sections)))
    assert_trains(run_engine(data, tmp_path), device, data, tolerance)


@pytest.mark.parametrize("device", [GPU])
def test_megatron_trains_a_bert_with_both_heads_and_clips(device: str, tmp_path: Path) -> None:
    model = {"kind": "bert", "attention_mask": "bidirectional"}
    output = run_engine(make_data(device, "megatron", model, train={"gradient_clipping": 0.5}), tmp_path)
    assert output.code == 0, output.text
    for step in output.events("step"):
        assert step["loss"] == pytest.approx(step["lm_loss"] + step["sop_loss"], abs=1e-5)
        assert step["grad_norm"] > 0
    assert output.losses()[-1] < output.losses()[0]


@pytest.mark.parametrize("device", [GPU])
@pytest.mark.parametrize("stage", [0, 3])
def test_zero(device: str, stage: int, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed here")
    data = make_data(device, "zero", parallel={"zero_stage": stage})
    assert_trains(run_engine(data, tmp_path), device, data, 2e-4)


@pytest.mark.parametrize("device", [GPU])
def test_hf(device: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed here")
    output = run_engine(make_data(device, "hf", {"implementation": "huggingface"}), tmp_path)
    assert output.code == 0, output.text
    assert output.events("start")[0]["device"].startswith(device)
    assert len(output.losses()) == 5
    assert output.losses()[-1] < output.losses()[0]


def mapping(*stages: str) -> dict[str, dict[str, str]]:
    """Return a device mapping from one string per stage, e.g. "GPU:0 CPU:0" for two shards."""
    return {
        f"stage_{stage}": {f"shard_{shard}": device for shard, device in enumerate(devices.split())}
        for stage, devices in enumerate(stages)
    }


@pytest.mark.parametrize(("device", "dim"), twins([0, -1], -1))
def test_sharding_with_all_shards_on_one_device(device: str, dim: int, tmp_path: Path) -> None:
    name = "GPU:0" if device == "cuda" else "CPU:0"
    section = {"mode": "hybrid", "sharding_size": 2, "sharding_dim": dim, "stage_cnt": 2, "accum_degree": 4}
    devices = {"device_mapping": mapping(f"{name} {name}", f"{name} {name}")}
    data = make_data(device, "sharding", sharding=section | devices)
    output = run_engine(data, tmp_path)
    assert_trains(output, device, data, 2e-4)
    assert output.events("end")[0]["avg_step_fps"] > 0


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("device", [GPU])
def test_sharding_over_a_gpu_and_a_cpu(device: str, dim: int, tmp_path: Path) -> None:
    devices = {"device_mapping": mapping("GPU:0 CPU:0", "CPU:0 GPU:0")}
    section = {"mode": "hybrid", "sharding_size": 2, "sharding_dim": dim, "stage_cnt": 2, "accum_degree": 4}
    data = make_data("auto", "sharding", sharding=section | devices)
    output = run_engine(data, tmp_path)
    assert output.code == 0, output.text
    assert {(start["device"], start["backend"]) for start in output.events("start")} == {
        ("cpu", "gloo"),
        ("cuda:0", "gloo"),
    }
    reference = RunConfig.model_validate({"model": MODEL, "train": data["train"]})
    expected = train_in_one_process(reference, 5, torch.device("cpu")).losses
    assert output.losses() == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("device", BOTH)
def test_command(device: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"#!{sys.executable}\nimport os, torch\n"
        "device = torch.device('cuda', int(os.environ['LOCAL_RANK'])) if torch.cuda.is_available() else 'cpu'\n"
        "print('sum', float(torch.ones(3, device=device).sum()), device, flush=True)\n"
    )
    script.chmod(0o755)
    allowed = tmp_path / "allowed.json"
    allowed.write_text(json.dumps([[str(script)]]))
    data = make_data(device, "command", command={"argv": [str(script)]})
    output = run_engine(data, tmp_path, processes=0, variables={"PARLAB_ALLOWED_COMMANDS": str(allowed)})
    assert output.code == 0, output.text
    assert f"sum 3.0 {'cuda:0' if torch.cuda.is_available() else 'cpu'}" in output.text


@pytest.mark.parametrize("device", [GPU])
def test_capacity_finds_the_limit_of_the_gpus_memory(device: str, tmp_path: Path) -> None:
    # The logits of one sequence take about 6 GB in fp32, and the loss keeps several tensors of that size.
    model = {"num_layers": 1, "sequence_length": 8192, "vocab_size": 200_000}
    search = {"find": "micro_batch_size", "engine": "megatron", "at_most": 64}
    train = {"global_batch_size": 1, "micro_batch_size": 1, "iterations": 2, "precision": "bf16"}
    data = make_data(device, "capacity", model, train=train, capacity=search)
    output = run_engine(data, tmp_path, processes=0)
    assert output.code == 0, output.text
    trials = output.events("step")
    fitting = [trial for trial in trials if trial["fits"]]
    (end,) = output.events("end")
    best = max(trial["micro_batch_size"] for trial in fitting)
    assert end["largest_micro_batch_size"] == best == min(t["micro_batch_size"] for t in trials if not t["fits"]) - 1
    peak = max(trial["memory_peak_bytes"] for trial in fitting)
    assert peak > 0.5 * torch.cuda.get_device_properties(0).total_memory
    assert "does not fit: out of memory" in output.text


@pytest.mark.parametrize("device", [GPU])
@pytest.mark.parametrize("engine", ["pipeline", "megatron", "hf", "sharding", "zero"])
def test_out_of_memory_is_reported_with_sizes_and_phase(device: str, engine: str, tmp_path: Path) -> None:
    if engine == "zero" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed here")
    model: dict[str, Any] = {"num_layers": 1, "sequence_length": 16_384, "vocab_size": 200_000}
    train = {"global_batch_size": 64, "micro_batch_size": 64, "iterations": 2}
    sections: dict[str, Any] = {}
    if engine == "hf":
        model["implementation"] = "huggingface"
    if engine == "sharding":
        sections["sharding"] = {"device_mapping": {"stage_0": {"shard_0": "GPU:0"}}}
    output = run_engine(make_data(device, engine, model, train=train, **sections), tmp_path, processes=0)
    assert output.code == 77, output.text
    (event,) = output.events("oom")
    assert event["phase"] == "forward"
    total = torch.cuda.get_device_properties(0).total_memory
    assert event["total_bytes"] == pytest.approx(total, rel=0.05)
    assert event["requested_bytes"] > event["free_bytes"] > 0
