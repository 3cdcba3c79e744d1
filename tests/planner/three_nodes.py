"""The published 3-node case: GPT-3 small, 64 sequences a step, GPipe and 1F1B on four networks."""

from __future__ import annotations

from dataclasses import replace

from parlab.planner.schedule import Link, Pipeline, Plan, StageTimes, calibrate, outcome, uniform

NETWORKS = [Link(1e-4, 10e9), Link(1e-3, 5e9), Link(5e-3, 2e9), Link(10e-3, 1e9)]
"""The default network first."""
MICRO_BATCH_SIZES = [1, 2, 4]
MEASURED_S = {
    "gpipe": [[6.64, 6.76, 6.94], [6.68, 6.82, 7.01], [6.70, 6.96, 7.31], [8.38, 8.61, 9.08]],
    "1f1b": [[6.54, 6.65, 6.86], [6.86, 7.05, 7.22], [8.42, 8.40, 8.57], [11.21, 11.03, 11.35]],
}
"""Seconds of an iteration by network and micro batch size."""
BACKWARD_PER_FORWARD = 3.0
"""Ratio of backward to forward time with recomputation."""


def message_bytes(micro_batch_size: int) -> int:
    """Return the size of the activations in fp32: sequence length 2,048, hidden size 768."""
    return micro_batch_size * 2048 * 768 * 4


def calibrated(schedule: str, micro_batch_size: int) -> Pipeline:
    """Return the pipeline on the default network, calibrated only on the row of that network."""
    size = message_bytes(micro_batch_size)
    blank = uniform(3, 64 // micro_batch_size, StageTimes(0, 0), NETWORKS[0], size)
    measured = MEASURED_S[schedule][0][MICRO_BATCH_SIZES.index(micro_batch_size)]
    times = calibrate(measured, Plan(schedule), blank, backward_per_forward=BACKWARD_PER_FORWARD)
    return replace(blank, stages=(times,) * 3)


def on(pipeline: Pipeline, link: Link) -> Pipeline:
    """Return the pipeline with other links."""
    return replace(pipeline, links=(link,) * pipeline.num_ranks)


def errors(schedule: str) -> list[float]:
    """Return the relative errors in the nine cells that the calibration did not use."""
    relative_errors = []
    for column, size in enumerate(MICRO_BATCH_SIZES):
        pipeline = calibrated(schedule, size)
        for link, row in zip(NETWORKS[1:], MEASURED_S[schedule][1:], strict=True):
            predicted = outcome(Plan(schedule), on(pipeline, link)).simulation.iteration_s
            relative_errors.append(abs(predicted / row[column] - 1))
    return relative_errors
