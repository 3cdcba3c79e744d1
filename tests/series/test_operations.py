"""Operations of single steps: kept compactly, read as printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parlab.lab.models import Attempt
from parlab.series import operations
from parlab.series.models import OperationChunk
from parlab.series.operations import Operation, Printed, read_operation


@pytest.fixture
def attempt(make_attempt: Callable[..., Attempt]) -> Attempt:
    return make_attempt()


def step_of(count: int, begin: float = 0.0) -> list[Operation]:
    times = [round(begin + k / 1000, 6) for k in range(count)]
    return [Operation("forward-compute", k, time, round(time + 0.0005, 6)) for k, time in enumerate(times)]


def first(result: list[Operation]) -> Printed:
    return Printed(result, is_begin=True)


@pytest.mark.database
def test_operations_in_pieces_become_one_row_ordered_by_begin(attempt: Attempt) -> None:
    whole = step_of(100)
    operations.append(attempt.pk, {(3, 0): first(whole[50:]), (3, 1): first(whole)})
    operations.append(attempt.pk, {(3, 0): Printed(whole[:50], is_begin=False)})
    assert operations.read(attempt.pk, 3) == {0: whole, 1: whole}
    assert operations.steps(attempt.pk) == [3]
    assert OperationChunk.objects.count() == 2
    row = OperationChunk.objects.first()
    assert row is not None
    assert sum(len(bytes(c)) for c in (row.kinds, row.micro_batches, row.begins, row.ends)) < 4 * 100


@pytest.mark.database
def test_a_step_that_is_printed_again_replaces_the_stored_one(attempt: Attempt) -> None:
    operations.append(attempt.pk, {(3, 0): first(step_of(10)), (3, 1): first(step_of(10))})
    operations.append(attempt.pk, {(3, 0): first(step_of(4))})
    assert {rank: len(result) for rank, result in operations.read(attempt.pk, 3).items()} == {0: 4, 1: 10}


def test_only_the_first_steps_are_stored(attempt: Attempt) -> None:
    for number in range(operations.MAX_STEPS + 5):
        operations.append(attempt.pk, {(number, 0): first(step_of(1))})
    operations.append(attempt.pk, {(0, 1): first(step_of(2))})  # another rank of a step that is kept
    assert operations.steps(attempt.pk) == list(range(operations.MAX_STEPS))
    assert set(operations.read(attempt.pk, 0)) == {0, 1}


def test_the_operations_of_a_rank_are_limited(attempt: Attempt) -> None:
    operations.append(attempt.pk, {(1, 0): first(step_of(operations.MAX_OPERATIONS + 100))})
    operations.append(attempt.pk, {(1, 0): Printed(step_of(5), is_begin=False)})
    assert len(operations.read(attempt.pk, 1)[0]) == operations.MAX_OPERATIONS


@pytest.mark.database
def test_deleting_leaves_those_of_other_attempts(attempt: Attempt, make_attempt: Callable[..., Attempt]) -> None:
    other = make_attempt(point={"train.seed": 2})
    for owner in (attempt, other):
        operations.append(owner.pk, {(1, 0): first(step_of(3))})
    operations.Collected(attempt.pk).store()
    assert operations.steps(attempt.pk) == []
    assert operations.steps(other.pk) == [1]


def test_an_entry_is_read_as_engines_print_it() -> None:
    assert read_operation(["optimizer", -1, 0.5, 1]) == Operation("optimizer", -1, 0.5, 1.0)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {"name": "optimizer"},
        ["optimizer", -1, 0.5],
        ["<script>", 0, 0.0, 1.0],
        [["optimizer"], 0, 0.0, 1.0],
        ["optimizer", 0.5, 0.0, 1.0],
        ["optimizer", True, 0.0, 1.0],
        ["optimizer", -2, 0.0, 1.0],
        ["optimizer", 2**40, 0.0, 1.0],
        ["optimizer", 0, 1.0, 0.5],
        ["optimizer", 0, -1.0, 0.5],
        ["optimizer", 0, 0.0, float("inf")],
        ["optimizer", 0, float("nan"), 1.0],
        ["optimizer", 0, 0.0, "1"],
        ["optimizer", 0, 0.0, 1e9],
        ["optimizer", 0, None, 1.0],
        ["optimizer", 0, 10**400, 10**400],
    ],
)
def test_invalid_operations_are_rejected(entry: Any) -> None:
    assert read_operation(entry) is None
