"""Throughput, memory and utilisation of scripts that type none of it: from launcher, devices and usual names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.client import journal
from parlab.client.callbacks import DeepSpeedMonitor
from parlab.lab.models import Run
from parlab.lab.selectors.analysis.surroundings import differing, run_surroundings
from parlab.lab.services.access.tokens import token_create
from tests.client.test_streams import Sender, record

pytestmark = pytest.mark.django_db
H100 = {"gpus": [{"index": 0, "name": "NVIDIA H100 80GB HBM3"}], "gpus_used": [{"name": "NVIDIA H100 80GB HBM3"}]}


@pytest.fixture
def sender(client: Client, admin: User) -> Sender:
    return Sender(client, token_create(user=admin, name="script", by=admin)[1])


def report(kind: str, **fields: Any) -> bytes:
    return journal.encode(journal.Kind.REPORT, json.dumps({"kind": kind, **fields}).encode())


def events(*steps: dict[str, Any], kind: str = "step") -> bytes:
    """Write the values of steps, one each 2 s."""
    lines = [
        {"parlab": 1, "t": 1e9 + 2 * step, "rank": 0, "event": kind, "step": step, "metrics": values}
        for step, values in enumerate(steps)
    ]
    return record(b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines))


def run_of(sender: Sender, output: bytes, *, name: str = "first", hardware: Any = None, **opening: Any) -> Run:
    path = f"/api/runs/{name}/streams/{name}/"
    assert sender.open(path, **opening).status_code == 200
    reports = report("environment", environment=hardware) if hardware else b""
    sender.send(0, 1, output + reports + report("end", state="finished", exit_code=0), path)
    return Run.objects.get(tracked__uuid=name)


def test_the_ranks_of_the_launcher_and_the_batch_of_a_rank_give_samples_per_second(sender: Sender) -> None:
    run = run_of(sender, events(*[{"loss": 1.0}] * 6), config={"batch_size": "4", "seq_len": "128"}, world_size=8)
    assert run.resolved["train"]["global_batch_size"] == 32
    assert run.summary["samples_per_s"] == pytest.approx(16)
    assert run.summary["tokens_per_s"] == pytest.approx(16 * 128)


def test_the_names_of_torchtitan_are_understood(sender: Sender) -> None:
    values = {"throughput(tps)": 5000.0, "mfu(%)": 31.5, "memory/max_active(GiB)": 50.0, "tflops": 300.0,
              "time_metrics/end_to_end(s)": 1.6}  # fmt: skip
    run = run_of(sender, events(*[values] * 4), world_size=8)
    assert run.summary["tokens_per_s"] == 40_000
    assert run.summary["mfu"] == pytest.approx(0.315)
    assert run.summary["step_time_s"]["median"] == pytest.approx(1.6)
    assert run.summary["sources"]["memory_active_bytes"] == "memory/max_active(GiB)"


def test_a_sum_of_tokens_gives_tokens_per_second(sender: Sender) -> None:
    run = run_of(sender, events(*[{"num_input_tokens_seen": 1000.0 * step} for step in range(5)]))
    assert run.summary["tokens_per_s"] == pytest.approx(500)


def test_model_ranks_and_devices_give_mfu(sender: Sender) -> None:
    config = {"num_layers": 24, "hidden_size": 2048, "seq_length": 2048, "vocab_size": 50304, "num_attention_heads": 16,
              "micro_batch_size": 8, "precision": "bf16"}  # fmt: skip
    texts = {name: str(value) for name, value in config.items()}
    run = run_of(sender, events(*[{"loss": 1.0}] * 6), config=texts, world_size=2, hardware=H100)
    assert run.summary["peak"]["device"] == "NVIDIA H100 80GB HBM3"
    assert 0 < run.summary["mfu"] < 1


def test_a_comparison_says_that_devices_differ(sender: Sender) -> None:
    other = {"gpus": [{"name": "NVIDIA A100-SXM4-80GB"}], "gpus_used": [], "driver": "570"}
    runs = [
        run_of(sender, events({"loss": 1.0}), name=name, hardware=hardware)
        for name, hardware in (("first", H100), ("second", other))
    ]
    assert "device" in differing(run_surroundings(runs), [run.pk for run in runs])


def test_memory_that_was_only_sampled_is_the_peak(sender: Sender) -> None:
    line = {"parlab": 1, "t": 1e9, "rank": 0, "event": "telemetry", "gpu_mem_bytes": 5e9}
    run = run_of(sender, events({"loss": 1.0}) + record(json.dumps(line, separators=(",", ":")).encode() + b"\n"))
    assert run.summary["memory_peak_bytes"]["max"] == 5_000_000_000


class Recorded:
    """A run that remembers what is logged."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.timers: dict[str, float] = {}
        self.logged: dict[int, dict[str, Any]] = {}

    def update_config(self, config: dict[str, Any]) -> None:
        self.config |= config

    def add_timers(self, seconds: dict[str, float]) -> None:
        self.timers |= seconds

    def log(self, values: dict[str, Any], step: int) -> None:
        self.logged[step] = values


def test_the_monitor_of_deepspeed_brings_its_batch_and_five_timers() -> None:
    run: Any = Recorded()
    names = ("forward", "backward", "backward_inner", "backward_allreduce", "step")
    timers = [(f"Train/Samples/elapsed_time_ms_{name}", 20.0, 64) for name in names]
    DeepSpeedMonitor(run, batch_size=32).write_events([("Train/Samples/lr", 0.1, 64), *timers])
    assert run.config == {"train_batch_size": 32}
    assert run.logged == {2: {"Train/Samples/lr": 0.1}}
    assert run.timers["forward-compute"] == run.timers["optimizer"] == 0.02
    assert len(run.timers) == 5
