"""The published 3-node case, emulated: GPT-3 small in three stages on fast to slow links, with published compute times.

The scaled-down sweep has a fifth of the sequences, two steps and two micro batch sizes. Compute times, message sizes
and links are those of the full size, so only the share of pipeline fill and drain is larger.
"""

from __future__ import annotations

from typing import Any

from parlab.demo.sweeps import DemoSweep
from parlab.planner.schedule import Plan
from parlab.planner.schedule.calibration import calibrate
from parlab.planner.schedule.pipeline import Link, Pipeline, StageTimes

DEFAULT = Link(0.1e-3, 10e9)
"""About 0.1 ms, up to 10 Gbit/s."""
LINKS: list[list[float | None]] = [[0.1, None], [1, 5], [5, 2], [10, 1]]
"""Delay in ms and bandwidth in Gbit/s; the bandwidth of the default network is not limited."""
DEFAULT_STEP_S = {"gpipe": {1: 6.64, 2: 6.76, 4: 6.94}, "1f1b": {1: 6.54, 2: 6.65, 4: 6.86}}
"""Published for the default network: schedule -> micro batch size -> seconds of an iteration of 64 sequences."""
SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("1f1b", 3)]
"""Schedule and warm-up slope; the simulation chooses slope 3 for 10 ms and 1 Gbit/s."""
STAGES, SEQUENCES, HIDDEN, LENGTH = 3, 64, 768, 2048
BACKWARD_PER_FORWARD = 3.0
"""The backward pass recomputes activations."""
WORK = "parallel.schedule, parallel.warmup_slope, train.micro_batch_size, emulation.forward_ms, emulation.backward_ms"
NETWORK = "network.delay_ms, network.bandwidth_gbps"


def times_ms(schedule: str, micro_batch_size: int) -> tuple[float, float]:
    """Return forward and backward time of a micro batch in ms that reproduce the published step time in simulation."""
    message = micro_batch_size * LENGTH * HIDDEN * 4
    pipeline = Pipeline(
        (StageTimes(0.0, 0.0),) * STAGES, SEQUENCES // micro_batch_size, (DEFAULT,) * STAGES, message, message
    )
    step_s = DEFAULT_STEP_S[schedule][micro_batch_size]
    times = calibrate(step_s, Plan(schedule), pipeline, backward_per_forward=BACKWARD_PER_FORWARD)
    return round(1e3 * times.forward_s, 3), round(1e3 * times.backward_s, 3)


def _data(sequences: int, iterations: int) -> dict[str, Any]:
    forward, backward = times_ms("1f1b", 1)
    return {
        "model": {
            "num_layers": 12,
            "hidden_size": HIDDEN,
            "num_attention_heads": 12,
            "sequence_length": LENGTH,
            "vocab_size": 50257,
        },
        "train": {"global_batch_size": sequences, "iterations": iterations, "warmup_steps": 1, "compute": "emulated"},
        "parallel": {"engine": "pipeline", "pipeline_parallel_size": STAGES},
        "emulation": {"forward_ms": [forward], "backward_ms": [backward]},
        "cluster": {"nodes": STAGES, "gpus_per_node": 1},
        "network": {"apply": "emulate"},
    }


def _sweep(micro_batch_sizes: list[int]) -> dict[str, list[Any]]:
    work = [
        [schedule, slope, size, *([time] for time in times_ms(schedule, size))]
        for schedule, slope in SCHEDULES
        for size in micro_batch_sizes
    ]
    return {WORK: work, NETWORK: LINKS}


def network_sweeps() -> list[DemoSweep]:
    """Return a sweep of a few minutes and one of the published size."""
    return [
        DemoSweep(
            "Three nodes on a slow network, emulated",
            "How much does a slow network slow down GPipe and 1F1B, and which schedule hides the latency?",
            "12 sequences and two steps on emulated links; stages wait for the compute times of three V100 nodes.",
            _data(12, 2),
            _sweep([1, 4]),
        ),
        DemoSweep(
            "Three nodes on a slow network, full size",
            "How do the published step times, with 64 sequences and 10 iterations, compare with an emulated network?",
            "36 runs of about 90 seconds each.",
            _data(SEQUENCES, 10),
            _sweep([1, 2, 4]),
        ),
    ]
