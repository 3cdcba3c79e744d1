from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from parlab.lab.models import Attempt
from parlab.series import chunks, levels, store
from parlab.series.chunks import CHUNK_POINTS
from parlab.series.columns import Columns, unpack
from parlab.series.models import SeriesChunk, SeriesLevel
from parlab.series.statements import Select

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
        st.one_of(st.integers(0, 5), st.sampled_from([1, 100, 256, 257, 3_900, 4_095, 4_096, 4_097, 9_000])),
        min_size=1,
    ),
    max_size=8,
)


@pytest.mark.slow
@pytest.mark.database
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
        rows = SeriesChunk.objects.filter(attempt_id=attempt_id, metric=metric, rank=rank).order_by("position")
        full = size // CHUNK_POINTS
        assert [chunk.count for chunk in rows][:full] == [CHUNK_POINTS] * full
        assert len(rows) <= full + 2
        begins = [CHUNK_POINTS * number for number in range(len(rows))]
        assert [chunk.position for chunk in rows][: full + 1] == begins[: full + 1]
        assert [chunk.is_last for chunk in rows] == [False] * (len(rows) - 1) + [True]


@pytest.mark.slow
@pytest.mark.database
def test_a_batch_of_a_few_points_writes_few_anew_however_long_the_series_is(attempt_id: int) -> None:
    written, points, size = 0, 0, 8
    while points < 2 * CHUNK_POINTS:
        before = dict(SeriesChunk.objects.values_list("position", "values"))
        store.append(attempt_id, {("loss", 0): columns(points, size)})
        points += size
        rows = SeriesChunk.objects.values_list("position", "values", "count")
        written += sum(count for position, values, count in rows if before.get(position) != values)
        if points % 800 == 0:
            first, last = points - 700, points - 20
            part = store.read(attempt_id, "loss", rank=0, max_points=50_000, first_step=first, last_step=last)
            assert same(part, columns(first, last + 1 - first))
    assert written < 40 * points  # 256 times where the last chunk is always written as a whole
    assert same(store.read(attempt_id, "loss", rank=0), columns(0, points))
    assert SeriesLevel.objects.filter(level=1).count() > 0


@pytest.mark.database
def test_a_reader_beside_a_writer_gets_each_point_once(attempt_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(0, 800, 100):
        store.append(attempt_id, {("loss", 0): columns(step, 100)})
    read_last = store._last_chunks

    def last_then_write(*arguments: Any) -> Any:
        rows = read_last(*arguments)
        store.append(attempt_id, {("loss", 0): columns(800, 100)})
        store.append(attempt_id, {("loss", 0): columns(900, 200)})
        return rows

    monkeypatch.setattr(store, "_last_chunks", last_then_write)
    assert same(store.read(attempt_id, "loss", rank=0, max_points=5_000), columns(0, 800))


def test_points_one_by_one_share_a_chunk(attempt_id: int) -> None:
    for step in range(50):
        store.append(attempt_id, {("loss", 0): columns(step, 1)})
    assert SeriesChunk.objects.count() == 1
    assert same(store.read(attempt_id, "loss", rank=0), columns(0, 50))


@pytest.mark.database
def test_series_with_shared_steps_may_diverge(attempt_id: int) -> None:
    shared, longer = columns(0, 10), columns(10, 7)
    store.append(attempt_id, {("loss", 0): shared, ("samples", 0): shared})
    store.append(attempt_id, {("loss", 0): longer})
    store.append(attempt_id, {("loss", 0): columns(17, 1), ("samples", 0): columns(17, 1)})
    assert same(store.read(attempt_id, "loss", rank=0), columns(0, 18))
    assert store.read(attempt_id, "samples", rank=0).steps.tolist() == [*range(10), 17]


@pytest.mark.database
def test_a_batch_of_some_of_a_thousand_metrics_reads_only_their_last_chunks(attempt_id: int) -> None:
    names = [f"layer.{number}" for number in range(1_200)]
    store.append(attempt_id, {(name, 0): columns(0, 2) for name in names})
    part = {(name, 0): columns(2, 1) for name in names[300:900]}
    assert len(list(chunks._last_chunks([(attempt_id, *key) for key in part]))) == len(part)
    store.append(attempt_id, part)
    counts = {info.metric: info.points for info in store.metrics(attempt_id)}
    assert counts == {name: 3 if 300 <= number < 900 else 2 for number, name in enumerate(names)}
    assert same(store.read(attempt_id, "layer.500", rank=0), columns(0, 3))


@pytest.mark.database
def test_an_append_takes_two_queries_however_many_series(
    attempt_id: int, django_assert_max_num_queries: Callable[[int], CaptureQueriesContext]
) -> None:
    keys = [(f"metric-{number}", rank) for number in range(20) for rank in range(2)]
    # A few more queries add chunks that have become full to the pyramids.
    for first, count, queries in ((0, 4_000, 2), (4_000, 96, 5), (4_096, 10, 5), (4_106, 5_000, 5)):
        with django_assert_max_num_queries(queries):
            store.append(attempt_id, {key: columns(first, count) for key in keys})
    assert store.read(attempt_id, "metric-7", rank=1).steps[-1] == 9_105


@pytest.mark.database
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
    result = store.read_ranks(attempt_id, "loss", max_points=100)
    assert sorted(result) == [0, 3]
    assert all(2 <= len(series) <= 100 for series in result.values())
    assert all(series.steps[0] == 0 and series.steps[-1] == 2_999 for series in result.values())


def test_a_series_without_points_is_empty(attempt_id: int) -> None:
    assert len(store.read(attempt_id, "loss", rank=0, max_points=10)) == 0
    assert store.read_ranks(attempt_id, "loss") == {}
    assert store.metrics(attempt_id) == []
    assert store.append(attempt_id, {("loss", 0): columns(0, 0)}) == 0
    assert not SeriesChunk.objects.exists()


@pytest.mark.database
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


@pytest.mark.database
def test_long_series_are_read_from_their_levels_with_all_peaks_and_gaps(
    attempt_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = columns(0, 300_000)
    series.values[[7, 123_456, 299_999]] = 50.0, -50.0, 60.0
    series.values[200_000:200_100] = np.nan
    for first in range(0, 300_000, 70_001):
        store.append(attempt_id, {("loss", 0): series.take(slice(first, first + 70_001))})
    unpacked: list[int] = []

    def spy(packed: bytes) -> NDArray[Any]:
        unpacked.append(len(column := unpack(packed)))
        return column

    monkeypatch.setattr("parlab.series.store.unpack", spy)
    monkeypatch.setattr("parlab.series.levels.unpack", spy)
    thin = store.read(attempt_id, "loss", rank=0, max_points=1_000)

    assert sum(unpacked) < 60_000
    assert len(thin) <= 1_000
    assert (thin.steps[0], thin.steps[-1]) == (0, 299_999)
    assert {50.0, -50.0, 60.0} <= set(thin.values.tolist())
    assert np.isnan(thin.values).any()


@pytest.mark.database
def test_a_part_of_a_long_series_is_found_by_a_few_rows_of_its_levels(
    attempt_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "ROW_BLOCKS", 16)
    store.append(attempt_id, {("loss", 0): columns(0, 300_000)})
    assert SeriesLevel.objects.filter(level=1).count() > 280
    read: list[int] = []

    def spy(select: Select) -> Callable[..., list[tuple[Any, ...]]]:
        def counted(where: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
            rows = select(where, parameters)
            read.append(len(rows))
            return rows

        return counted

    for name in ("_read", "_last", "_steps"):
        monkeypatch.setattr(levels, name, spy(getattr(levels, name)))
    for first in (0, 150_000, 290_000):
        read.clear()
        steps = store.read(attempt_id, "loss", rank=0, max_points=20, first_step=first, last_step=first + 9_000).steps
        assert 10 <= len(steps) <= 20
        assert 0 < sum(read) < 50, read


@pytest.mark.database
@pytest.mark.skipif(connection.vendor != "sqlite", reason="reads plans of SQLite; PostgreSQL plans by statistics")
def test_the_last_rows_of_levels_are_searched_by_an_index_of_their_own(attempt_id: int) -> None:
    store.append(attempt_id, {("loss", 0): columns(0, 100_000)})
    plans: list[str] = []

    def planned(execute: Callable[..., Any], sql: str, parameters: Any, many: bool, context: dict[str, Any]) -> Any:
        if '"series_serieslevel"' in sql:
            execute(f"EXPLAIN QUERY PLAN {sql}", parameters, many, context)
            plans.append(" ".join(row[3] for row in context["cursor"].fetchall()))
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(planned):
        store.read(attempt_id, "loss", rank=0, max_points=1_000)
        levels.last_rows(attempt_id, ["loss"])
    assert len(plans) == 2
    assert all("USING INDEX level_last" in plan for plan in plans), plans


@pytest.mark.slow
@pytest.mark.database
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([70_000], 5_765, 3)  # the last block is a third of the range
@given(
    st.lists(st.sampled_from([1, 63, 4_096, 5_000, 12_289, 70_000]), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
    st.sampled_from([3, 50, 1_000]),
)
def test_a_part_holds_the_extremes_and_only_points_of_the_series(
    attempt_id: int, sizes: list[int], seed: int, least: int
) -> None:
    store.delete(attempt_id)
    random = np.random.default_rng(seed)
    steps = np.arange(sum(sizes), dtype=np.int64)
    values = np.where(random.random(len(steps)) < 1e-3, np.nan, random.normal(size=len(steps)))
    series = Columns(steps, steps / 4.0, values)
    for end, size in zip(np.cumsum(sizes).tolist(), sizes, strict=True):
        store.append(attempt_id, {("loss", 0): series.take(slice(end - size, end))})

    low, high = sorted(random.integers(-5, len(steps) + 5, 2).tolist())
    for first_step, last_step in ((None, None), (low, high), (low, None), (None, high)):
        expected = series.take(
            slice(max(0, low) if first_step is not None else 0, high + 1 if last_step is not None else None)
        )
        parts = store.read_parts([attempt_id], ["loss"], least, first_step=first_step, last_step=last_step)
        if not len(expected):
            assert parts == {}
            continue
        (part,) = parts.values()
        got = part.columns
        assert np.all(np.diff(got.steps) > 0)
        assert np.array_equal(values[got.steps], got.values, equal_nan=True)
        assert len(got) == len(expected) if part.is_whole else len(got) >= min(least, len(expected)) - 2
        # Blocks at the ends of the range may have their extremes outside of it.
        end = 0 if part.is_whole or first_step is last_step is None else max(5_000, 2 * len(expected) // least)
        inner = expected.values[end : len(expected) - end]
        if np.isfinite(inner).any():
            assert np.nanmax(got.values) >= np.nanmax(inner)
            assert np.nanmin(got.values) <= np.nanmin(inner)


@pytest.mark.database
def test_levels_of_series_from_before_there_were_levels_are_made_with_their_next_chunk(attempt_id: int) -> None:
    store.append(attempt_id, {("loss", 0): columns(0, 200_000)})
    before = store.read_parts([attempt_id], ["loss"], 500)
    SeriesLevel.objects.all().delete()
    (part,) = store.read_parts([attempt_id], ["loss"], 500).values()
    assert len(part.columns) == 200_000

    store.append(attempt_id, {("loss", 0): columns(200_000, 4_096)})

    (part,) = store.read_parts([attempt_id], ["loss"], 500, last_step=199_000).values()
    (expected,) = before.values()
    assert len(part.columns) < 20_000
    assert set(part.columns.steps.tolist()) >= set(expected.columns.steps[expected.columns.steps < 196_000].tolist())


def test_means_of_blocks_cover_the_full_chunks(attempt_id: int) -> None:
    series = columns(0, 20_000)
    series.values[5] = np.inf
    store.append(attempt_id, {("loss", 0): series})
    for level in (1, 2):
        means, counts = levels.means(attempt_id, "loss", 0, level=level)
        size = levels.size_of(level)
        expected = series.values[:16_384].reshape(-1, size)
        finite = np.where(np.isfinite(expected), expected, np.nan)
        assert means == pytest.approx(np.nanmean(finite, axis=1))
        assert counts.tolist() == np.isfinite(expected).sum(axis=1).tolist()


@pytest.mark.database
def test_deleting_a_series_deletes_its_levels(attempt_id: int) -> None:
    store.append(attempt_id, {("loss", rank): columns(0, 5_000) for rank in (0, 1)})
    store.delete(attempt_id, [("loss", 0)])
    assert set(SeriesLevel.objects.values_list("rank", flat=True)) == {1}
    store.delete(attempt_id)
    assert not SeriesLevel.objects.exists()
