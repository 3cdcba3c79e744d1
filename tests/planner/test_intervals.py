"""Calibrations help near measured jobs, and say so where they do not reach."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest

from parlab.planner import DEFAULT, Job, Model, Observation, calibrate, cluster, predict_job
from parlab.planner.calibration.calibration import Calibration
from parlab.planner.prediction.timing import Clock

MODEL = Model(32, 4096, 32, 2048, 51_200)
BASE = Job(MODEL, 512, 2, 4, 1, 16, recompute="full")


def slow(job: Job, factor: float) -> Observation:
    """Return a measurement that is `factor` times as long as predicted."""
    hardware = cluster("A100", job.world_size, 8)
    return Observation(job, hardware, Clock(job, hardware, DEFAULT.time).timing().total_s * factor)


def calibrated(factor: float) -> Calibration:
    jobs = [
        replace(BASE, data_parallel=data, micro_batch_size=micro, tensor_parallel=tensor)
        for data in (1, 2, 4, 8)
        for micro in (1, 2)
        for tensor in (2, 4)
    ]
    return calibrate([slow(job, factor) for job in jobs], "small runs")


def test_an_unmeasured_job_is_predicted_closer_after_a_calibration_near_it() -> None:
    job = replace(BASE, data_parallel=3, global_batch_size=384)
    measured = slow(job, 1.2)
    calibration = calibrated(1.2)
    hardware = measured.cluster
    before = predict_job(job, hardware).iteration_s / (measured.iteration_s or 1)
    after = predict_job(job, hardware, calibration).iteration_s / (measured.iteration_s or 1)
    assert abs(log(after)) < 0.25 * abs(log(before))


def test_far_from_calibrated_jobs_the_interval_is_that_of_uncalibrated_predictions_and_says_so() -> None:
    calibration = calibrated(1.2)
    near = replace(BASE, data_parallel=4)
    far = replace(BASE, model=replace(MODEL, num_layers=96, hidden_size=12_288), pipeline_parallel=32, data_parallel=16)
    hardware = cluster("A100", far.world_size, 8)
    assert predict_job(near, hardware, calibration).spread < predict_job(near, hardware).spread
    prediction = predict_job(far, hardware, calibration)
    assert prediction.spread == pytest.approx(predict_job(far, hardware).spread, rel=0.02)
    reasons = " ".join(prediction.reasons)
    assert "outside the calibrated range of at most 32 GPUs" in reasons
    assert "differs from all calibrated jobs" in reasons


def test_a_calibration_on_small_runs_moves_large_predictions_less_the_larger_they_are() -> None:
    calibration = calibrated(1.5)
    moves = []
    for replicas in (8, 64, 512):
        job = replace(BASE, data_parallel=replicas, global_batch_size=32 * replicas)
        hardware = cluster("A100", job.world_size, 8)
        ratio = predict_job(job, hardware, calibration).iteration_s / predict_job(job, hardware).iteration_s
        moves.append(abs(log(ratio)))
    assert moves[0] > 0.3
    assert moves[0] > moves[1] > moves[2]
    assert moves[2] < 0.06


@pytest.mark.parametrize(
    ("changes", "gpus_per_node", "gpu"),
    [
        ({"zero_stage": 3, "tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 64}, 8, "A100"),
        ({"model": replace(MODEL, num_experts=8, experts_per_token=2)}, 8, "A100"),
        ({"context_parallel": 2}, 8, "A100"),
        ({}, 4, "V100"),
    ],
)
def test_kinds_of_jobs_with_larger_errors_have_wider_intervals(
    changes: dict[str, object], gpus_per_node: int, gpu: str
) -> None:
    usual = predict_job(BASE, cluster("A100", 64, 8)).spread
    job = replace(BASE, **changes)  # type: ignore[arg-type]
    assert predict_job(job, cluster(gpu, job.world_size, gpus_per_node)).spread > usual
