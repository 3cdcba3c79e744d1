"""Formulas recorded once for many rows give the same numbers as the formulas themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parlab.planner import Job, Model, cluster
from parlab.planner.calibration.recorded_formulas import Batch, Formula, larger, smaller
from parlab.planner.prediction.memory import memory, needed_bytes
from parlab.planner.prediction.parameters import MemoryParameters, TimeParameters, as_vector, names
from parlab.planner.prediction.timing import Clock

HARDWARE = cluster("A100", 64, 8)
BASE = Job(Model(24, 2048, 16, 1024, 51_200), 128, tensor_parallel=2, pipeline_parallel=4, data_parallel=8)
JOBS = [
    BASE,
    replace(BASE, micro_batch_size=4, recompute="full"),
    replace(BASE, zero_stage=1, schedule="gpipe"),
    replace(BASE, tensor_parallel=1, pipeline_parallel=1, data_parallel=64, zero_stage=3),
    replace(BASE, schedule="interleaved-1f1b", virtual_stages=3, overlaps_gradients=True, has_flash_attention=True),
]


def test_recorded_times_and_sizes_equal_the_direct_ones() -> None:
    def seconds(job: Job) -> Formula:
        def formula(values: list[float]) -> float:
            constants = TimeParameters(**dict(zip(names(TimeParameters), values, strict=True)))
            return Clock(job, HARDWARE, constants).timing().total_s

        return Formula(len(names(TimeParameters)), formula)

    def size(job: Job) -> Formula:
        def formula(values: list[float]) -> float:
            return needed_bytes(job, MemoryParameters(**dict(zip(names(MemoryParameters), values, strict=True))), 8)

        return Formula(len(names(MemoryParameters)), formula)

    times = Batch([seconds(job) for job in JOBS]).values(np.exp(as_vector(TimeParameters()))[None])[0]
    sizes = Batch([size(job) for job in JOBS]).values(np.exp(as_vector(MemoryParameters()))[None])[0]
    for job, recorded_s, recorded_bytes in zip(JOBS, times, sizes, strict=True):
        assert recorded_s == pytest.approx(Clock(job, HARDWARE, TimeParameters()).timing().total_s, rel=1e-12)
        assert recorded_bytes == pytest.approx(memory(job, MemoryParameters(), 8).total_bytes, rel=1e-12)


def test_a_formula_that_branches_on_a_constant_is_refused() -> None:
    with pytest.raises(TypeError, match="use larger and smaller"):
        Formula(1, lambda values: values[0] if values[0] > 1 else 2.0)
    with pytest.raises(TypeError, match="use larger and smaller"):
        Formula(1, lambda values: max(1.0, values[0]))


def test_formulas_of_several_shapes_are_evaluated_at_several_points() -> None:
    batch = Batch([
        Formula(2, lambda values: 2 * values[0] + values[1] ** 2),
        Formula(2, lambda values: 3 * values[0] + values[1] ** 2),
        Formula(2, lambda values: larger(values[0], 5.0) - 1 / smaller(4.0, values[1])),
        Formula(2, lambda values: 7.0),
    ])  # fmt: skip
    results = batch.values(np.array([[1.0, 2.0], [10.0, 8.0]]))
    assert results.tolist() == [[6, 7, 4.5, 7], [84, 94, 9.75, 7]]
