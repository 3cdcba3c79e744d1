from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlab.series.columns import Columns, pack, unpack


def columns(values: list[float], steps: list[int] | None = None) -> Columns:
    steps = list(range(len(values))) if steps is None else steps
    return Columns(np.array(steps, np.int64), np.arange(len(values)) / 1000, np.array(values, np.float64))


@given(st.lists(st.floats(width=64), min_size=1))
def test_a_packed_column_of_floats_comes_back_bit_for_bit(values: list[float]) -> None:
    column = np.array([*values, float("nan"), float("-inf"), -0.0])
    assert unpack(pack(column)).tobytes() == column.tobytes()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_a_packed_column_of_integers_comes_back_as_integers(steps: list[int]) -> None:
    column = np.array(steps, np.int64)
    unpacked = unpack(memoryview(pack(column)))
    assert unpacked.dtype == np.int64
    assert unpacked.tolist() == steps


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 steps, 3 times and 3 values"):
        Columns(np.arange(2), np.arange(3.0), np.arange(3.0))


@given(st.lists(st.floats(width=64), max_size=300), st.integers(2, 50))
def test_thinning_keeps_points_that_exist_in_order_with_both_ends(values: list[float], max_points: int) -> None:
    thin = columns(values).thinned(max_points)
    assert len(thin) <= max_points
    assert thin.steps.tolist() == sorted(set(thin.steps.tolist()))
    assert np.array(values, np.float64)[thin.steps].tobytes() == thin.values.tobytes()
    if values:
        assert thin.steps[0] == 0
        assert thin.steps[-1] == len(values) - 1


def test_thinning_keeps_a_peak_and_a_gap_among_many_points() -> None:
    values = np.sin(np.arange(100_000) / 5_000)
    values[31_415] = 50.0
    values[70_000] = np.nan
    thin = columns(values.tolist()).thinned(500)
    assert 31_415 in thin.steps
    assert 70_000 in thin.steps


def test_thinning_keeps_the_order_of_a_training_that_restarted_at_an_earlier_step() -> None:
    steps = [*range(5_000), *range(2_000, 5_000)]
    thin = columns([float(step) for step in steps], steps).thinned(100)
    assert 2_000 in thin.steps[-60:]


def test_thinning_to_one_point_is_refused() -> None:
    with pytest.raises(ValueError, match="max_points 1"):
        columns([1.0, 2.0]).thinned(1)
