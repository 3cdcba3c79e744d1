"""FLOPs, MFU and GPU utilisation in the summary of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command

from parlab.formats.schema import Launch
from parlab.ingest.batches.services import batch_apply
from parlab.ingest.readings.imported_summary import with_utilisation
from parlab.ingest.readings.launches import resolved_of
from parlab.ingest.summaries.utilisation import reference_of
from parlab.lab.models import Attempt, Node
from parlab.planner.prediction.flops import Shape, model_flops
from runners.wire.protocol import Report

from .output import event, step, training
from .test_services import batch
from .test_summary import summary

MakeAttempt = Callable[..., Attempt]
SMALL = Shape(2, 32, 16, 64)
A100 = {"index": 0, "name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 40 << 30, "uuid": "GPU-0"}
MATMUL = {"flops": {"fp32": {"1": 6e10, "2": 5e10, "4": 1.5e11}}, "torch": "2.13.0"}


def finish(attempt: Attempt, environment: dict[str, Any]) -> dict[str, Any]:
    running = Report(state="running", at=1_700_000_000.0, environment=environment)
    finished = Report(state="finished", at=1_700_000_100.0, exit_code=0)
    batch_apply(batch=batch(attempt, 0, training(10), running, finished))
    attempt.run.refresh_from_db()
    result: dict[str, Any] = attempt.run.summary
    return result


@pytest.mark.django_db
def test_a_run_on_gpus_is_measured_against_their_data_sheet(make_attempt: MakeAttempt) -> None:
    result = finish(make_attempt(state="dispatched"), {"gpus_used": [A100, {**A100, "index": 1}]})
    # Two ranks, a global batch of 4, 0.75 s a step in training().
    flops = model_flops(SMALL, 4)
    assert result["model_flops_per_iteration"] == pytest.approx(flops)
    assert result["tflops_per_gpu"] == pytest.approx(flops / 2 / 0.75 / 1e12)
    assert result["mfu"] == result["hfu"] == pytest.approx(flops / 2 / 0.75 / 19.5e12)
    assert (result["peak"]["flops"], result["peak"]["precision"], result["peak"]["kind"]) == (
        19.5e12,
        "fp32",
        "data sheet",
    )
    assert "A100" in result["peak"]["source"]


@pytest.mark.django_db
def test_a_run_on_the_cpu_is_measured_against_the_nodes_own_matrix_products(make_attempt: MakeAttempt) -> None:
    result = finish(make_attempt(state="dispatched"), {"gpus_used": [], "matmul": MATMUL})
    assert result["peak"]["kind"] == "measured"
    # Two threads seem to do less than one here: the machine was busy, and one shows what there is.
    assert result["peak"]["flops"] == 3e10
    assert "measured on this node" in result["peak"]["source"]
    assert result["mfu"] == pytest.approx(model_flops(SMALL, 4) / 2 / 0.75 / 3e10)


@pytest.mark.django_db
def test_reingest_uses_later_measurements_of_the_node(make_attempt: MakeAttempt) -> None:
    attempt = make_attempt(state="dispatched")
    before = finish(attempt, {"gpus_used": []})
    assert "mfu" not in before
    assert before["tflops_per_gpu"] > 0
    Node.objects.update(hardware={"matmul": MATMUL})
    call_command("reingest", verbosity=0)
    attempt.run.refresh_from_db()
    assert attempt.run.summary["mfu"] > 0


@pytest.mark.parametrize(
    ("environment", "hardware"),
    [
        ({}, {"matmul": MATMUL}),
        ({"gpus_used": [{"name": "NVIDIA GeForce GTX 1080"}]}, {"matmul": MATMUL}),
        ({"gpus_used": "many"}, {}),
        ({"gpus_used": []}, {"matmul": {"flops": {"fp32": {"x": 1, "2": -1, "1": "fast"}}}}),
        ({"gpus_used": []}, {"matmul": [1]}),
    ],
)
def test_an_unknown_device_has_no_peak(environment: dict[str, Any], hardware: dict[str, Any]) -> None:
    resolved: dict[str, dict[str, Any]] = {
        "train": {"precision": "fp32"},
        "cluster": {"gpus_per_node": 2},
        "launcher": {"threads_per_rank": 1},
    }
    assert reference_of(resolved, environment, hardware) is None


def gpu(rank: int, at: float, percent: float) -> bytes:
    return event("telemetry", rank=rank, t=1_700_000_000 + at, gpu_util_pct=percent)


def test_gpu_utilisation_is_of_the_timed_steps_only() -> None:
    # Step 1 is warm-up; steps 2 and 3 run from 1.5 s to 3 s.
    steps = step(1, warmup=True, step_time_s=1.0) + step(2, step_time_s=0.5) + step(3, step_time_s=0.5)
    samples = gpu(0, 1.0, 0) + gpu(0, 2.0, 80) + gpu(0, 3.0, 90) + gpu(1, 2.5, 60) + gpu(1, 3.5, 0)
    assert summary(steps + samples)["gpu_utilization"] == {
        "mean": 72.5,
        "min": 60.0,
        "max": 90.0,
        "by_gpu": {"0": {"mean": 85.0, "min": 80.0, "max": 90.0}, "1": {"mean": 60.0, "min": 60.0, "max": 60.0}},
    }


def test_without_a_timed_step_or_a_sample_there_is_no_utilisation() -> None:
    assert "gpu_utilization" not in summary(gpu(0, 1.0, 50))
    assert "gpu_utilization" not in summary(step(1) + gpu(0, 9.0, 50))


def imported(**arguments: Any) -> dict[str, Any]:
    launch = Launch(
        world_size=8,
        global_batch_size=64,
        sequence_length=1024,
        num_layers=24,
        hidden_size=1024,
        precision="bf16",
        arguments={"padded_vocab_size": 50304, **arguments},
    )
    return with_utilisation({"step_time_s": {"median": 2.0}, "tflops_per_gpu": 55.0}, resolved_of(launch), launch)


def test_an_imported_run_has_flops_where_its_sizes_are_known_and_keeps_what_it_prints() -> None:
    result = imported()
    assert result["model_flops_per_iteration"] == pytest.approx(model_flops(Shape(24, 1024, 1024, 50304), 64))
    assert result["tflops_per_gpu"] == 55.0
    assert "mfu" not in result
    assert "kinds" not in result


def test_an_imported_run_has_an_mfu_where_its_gpu_or_its_peak_is_known() -> None:
    named, stated = imported(gpu_name="NVIDIA H100 80GB HBM3"), imported(peak_flops_per_gpu=989.4e12)
    assert named["mfu"] == stated["mfu"] == pytest.approx(named["model_flops_per_iteration"] / 8 / 2 / 989.4e12)
    assert (named["peak"]["kind"], stated["peak"]["kind"]) == ("data sheet", "stated")
    assert "hfu" not in named
    assert named["kinds"] == {"mfu_pct": "derived"}
    assert "hfu" in imported(gpu_name="H100", recompute_granularity="full")


@pytest.mark.parametrize(
    "argument", [{"num_experts": 8}, {"swiglu": True}, {"rampup_batch_size": ["32", "32", "1000"]}]
)
def test_an_imported_run_of_an_unsupported_model_has_no_flops(argument: dict[str, Any]) -> None:
    assert "model_flops_per_iteration" not in imported(**argument)
