from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from parlab.lab.models import Attempt
from parlab.series import store
from parlab.series.columns import Columns, unpack
from parlab.series.models import SeriesChunk

MakeAttempt = Callable[..., Attempt]


@pytest.fixture
def attempt_id(make_attempt: MakeAttempt) -> int:
    return make_attempt().pk


def columns(first: int, count: int) -> Columns:
    steps = np.arange(first, first + count)
    return Columns(steps, 1.7e9 + steps.astype(np.float64) / 4, np.sin(steps.astype(np.float64)))


def same(left: Columns, right: Columns) -> bool:
    return all(
        a.tobytes() == b.tobytes()
        for a, b in zip((left.steps, left.times, left.values), (right.steps, right.times, right.values), strict=True)
    )


appends = st.lists(
    st.dictionaries(
        st.tuples(st.sampled_from(["loss", "timer/forward-compute", "memory_bytes"]), st.integers(-1, 2)),
        st.one_of(st.integers(0, 5), st.sampled_from([1, 4_095, 4_096, 4_097, 9_000])),
        min_size=1,
    ),
    max_size=6,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(appends)
def test_any_appends_read_back_as_their_concatenation(
    attempt_id: int, appends: list[dict[tuple[str, int], int]]
) -> None:
    store.delete(attempt_id)
    expected: dict[tuple[str, int], int] = {}
    for sizes in appends:
        pieces = {key: columns(expected.get(key, 0), size) for key, size in sizes.items()}
        assert store.append(attempt_id, pieces) == sum(sizes.values())
        for key, size in sizes.items():
            expected[key] = expected.get(key, 0) + size
    expected = {key: size for key, size in expected.items() if size}

    assert {(metric, rank): points for metric, rank, points in store.metrics(attempt_id)} == expected
    for (metric, rank), size in expected.items():
        assert same(store.read(attempt_id, metric, rank=rank), columns(0, size))
        chunks = SeriesChunk.objects.filter(attempt_id=attempt_id, metric=metric, rank=rank).order_by("position")
        assert [chunk.count for chunk in chunks[: len(chunks) - 1]] == [4_096] * (len(chunks) - 1)
        assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_points_one_by_one_share_a_chunk(attempt_id: int) -> None:
    for step in range(50):
        store.append(attempt_id, {("loss", 0): columns(step, 1)})
    assert SeriesChunk.objects.count() == 1
    assert same(store.read(attempt_id, "loss", rank=0), columns(0, 50))


def test_series_with_shared_steps_may_diverge(attempt_id: int) -> None:
    shared, longer = columns(0, 10), columns(10, 7)
    store.append(attempt_id, {("loss", 0): shared, ("samples", 0): shared})
    store.append(attempt_id, {("loss", 0): longer})
    store.append(attempt_id, {("loss", 0): columns(17, 1), ("samples", 0): columns(17, 1)})
    assert same(store.read(attempt_id, "loss", rank=0), columns(0, 18))
    assert store.read(attempt_id, "samples", rank=0).steps.tolist() == [*range(10), 17]


def test_an_append_takes_two_queries_however_many_series(
    attempt_id: int, django_assert_max_num_queries: Callable[[int], CaptureQueriesContext]
) -> None:
    keys = [(f"metric-{number}", rank) for number in range(20) for rank in range(2)]
    for first, count in ((0, 4_000), (4_000, 96), (4_096, 10), (4_106, 5_000)):
        with django_assert_max_num_queries(2):
            store.append(attempt_id, {key: columns(first, count) for key in keys})
    assert store.read(attempt_id, "metric-7", rank=1).steps[-1] == 9_105


def test_a_range_of_steps_reads_only_the_chunks_that_hold_it(attempt_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append(attempt_id, {("loss", 0): columns(0, 50_000)})
    unpacked: list[bytes] = []

    def spy(packed: bytes) -> NDArray[Any]:
        unpacked.append(packed)
        return unpack(packed)

    monkeypatch.setattr("parlab.series.store.unpack", spy)
    result = store.read(attempt_id, "loss", rank=0, first_step=20_000, last_step=20_009)
    assert result.steps.tolist() == list(range(20_000, 20_010))
    assert len(unpacked) == 3


def test_all_ranks_are_returned_as_a_dict_and_downsampled(attempt_id: int) -> None:
    store.append(attempt_id, {("loss", rank): columns(0, 3_000) for rank in (0, 3)})
    result = store.read(attempt_id, "loss", max_points=100)
    assert sorted(result) == [0, 3]
    assert all(2 <= len(series) <= 100 for series in result.values())
    assert all(series.steps[0] == 0 and series.steps[-1] == 2_999 for series in result.values())


def test_a_series_without_points_is_empty(attempt_id: int) -> None:
    assert len(store.read(attempt_id, "loss", rank=0, max_points=10)) == 0
    assert store.read(attempt_id, "loss") == {}
    assert store.metrics(attempt_id) == []
    assert store.append(attempt_id, {("loss", 0): columns(0, 0)}) == 0
    assert not SeriesChunk.objects.exists()


def test_attempts_have_separate_points(make_attempt: MakeAttempt) -> None:
    mine, other = make_attempt(), make_attempt(point={"train.seed": 2})
    store.append(mine.pk, {("loss", 0): columns(0, 10)})
    store.append(other.pk, {("loss", 0): columns(5, 10)})
    result = store.read_many([mine.pk, other.pk], ["loss"], last_step=6)
    assert {key: series.steps.tolist() for key, series in result.items()} == {
        (mine.pk, "loss", 0): [0, 1, 2, 3, 4, 5, 6],
        (other.pk, "loss", 0): [5, 6],
    }
    store.delete(mine.pk)
    assert store.metrics(mine.pk) == []
    assert store.metrics(other.pk) == [("loss", 0, 10)]
