"""Series replaced by spooled points, and output that is read as it grows."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parlab.lab.models import Attempt
from parlab.series import log, replacing, store
from parlab.series.columns import Columns
from parlab.series.following import Follower
from parlab.series.models import LogChunk, SeriesChunk, SeriesLevel

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def points(first: int, count: int) -> Columns:
    steps = np.arange(first, first + count)
    return Columns(steps, steps / 4, np.where(steps % 97 == 0, np.nan, np.sin(steps)))


def rows(attempt: Attempt) -> list[tuple[Any, ...]]:
    """All rows of the series of an attempt, without their keys."""
    tables = []
    for model in (SeriesChunk, SeriesLevel):
        names = [field.name for field in model._meta.concrete_fields if field.name not in ("id", "attempt")]
        selected = model._default_manager.filter(attempt=attempt).order_by("metric", "rank", "position")
        tables += [tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)
                   for row in selected.values_list(*names)]  # fmt: skip
    return sorted(tables, key=repr)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, store.CHUNK_POINTS, store.CHUNK_POINTS + 1, 70 * store.CHUNK_POINTS + 7])
def test_a_replaced_series_has_the_rows_of_one_that_was_appended(
    make_attempt: Callable[..., Attempt], count: int
) -> None:
    appended, replaced = make_attempt(), make_attempt(point={"train.seed": 2})
    keys = [("loss", 0), ("loss", 1)]
    for first in range(0, count, 9_999):
        piece = points(first, min(9_999, count - first))
        store.append(appended.pk, dict.fromkeys(keys, piece))
    store.append(replaced.pk, {("loss", 0): points(0, 5_000), ("other", 0): points(0, 5)})
    spool = replacing.Spool(io.BytesIO())
    for first in range(0, count, 777):
        spool.add(dict.fromkeys(keys, points(first, min(777, count - first))))
    series = {key: replacing.packed(replaced.pk, key, spool) for key in [*keys, ("other", 0)]}
    replacing.replace(replaced.pk, series)
    store.append(replaced.pk, {key: spool.read(key, each.points) for key, each in series.items()})
    assert rows(replaced) == rows(appended)
    assert set(replacing.stored_keys(replaced.pk)) == set(keys)


PIECES = st.tuples(
    st.sampled_from([b"a", b"b\n", b"\n", b"c" * 100_000 + b"\n", b"d" * log.CHUNK_BYTES]),
    st.sampled_from([None, 0, 1]),
    st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES, max_size=8))
def test_output_is_followed_as_it_is_read_in_one_go(
    make_attempt: Callable[..., Attempt], pieces: list[tuple[bytes, int | None, bool]]
) -> None:
    attempt_id = (Attempt.objects.first() or make_attempt()).pk
    LogChunk.objects.all().delete()
    follower, followed = Follower(attempt_id, 0), b""
    for data, rank, is_continued in pieces:
        # Output of ranks consists of whole lines, unless a line is very long.
        marks = [] if rank is None else [(0, rank, is_continued)]
        log.append_log(attempt_id, data, streams=marks)
        followed += b"".join(follower.more())
    in_one_go = b"".join(Follower(attempt_id, 0).more())
    assert followed == in_one_go
    assert in_one_go.replace(b"\n", b"") == b"".join(log.read_log(attempt_id, node_rank=0)).replace(b"\n", b"")
    assert not list(follower.more()) or not b"".join(follower.more())
