"""The partitions of series and logs on PostgreSQL: what statements touch, how they are made, where rows go."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from parlab.ingest import tasks
from parlab.ingest.batches import deletion, services
from parlab.lab.models import Attempt, Member, Run
from parlab.series import archive, log, operations, partitions, store
from parlab.series.columns import Columns

from .output import training
from .test_services import batch

pytestmark = [
    pytest.mark.database,
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no partitions"),
]
MakeAttempt = Callable[..., Attempt]
LENGTH = 20 * store.CHUNK_POINTS + 100
MODELS = ("SeriesChunk", "SeriesLevel", "LogChunk", "OperationChunk")


def numbered(attempt: Attempt, pk: int) -> Attempt:
    """Give an attempt another id, as if there had been that many before it."""
    with transaction.atomic():
        Attempt.objects.filter(pk=attempt.pk).update(id=pk)
        Member.objects.filter(attempt_id=attempt.pk).update(attempt_id=pk)
    return Attempt.objects.get(pk=pk)


def columns(first: int, last: int) -> Columns:
    steps = np.arange(first, last)
    return Columns(steps, (1.7e9 + steps).astype(np.float64), np.sin(steps / 100))


def fill(attempt_id: int) -> None:
    """Store a long series, output and operations."""
    store.append(attempt_id, {("loss", 0): columns(0, LENGTH)})
    log.append_log(attempt_id, b"hello\n" * 100_000)
    operations.append(attempt_id, {(1, 0): operations.Printed([operations.Operation("optimizer", -1, 0.0, 0.5)], True)})


def content(attempt_id: int) -> list[Any]:
    """Return all that is stored of an attempt."""
    whole, thinned = (store.read(attempt_id, "loss", rank=0, max_points=points) for points in (None, 500))
    arrays = [[array.tolist() for array in (each.steps, each.times, each.values)] for each in (whole, thinned)]
    return [arrays, b"".join(log.read_log(attempt_id)), operations.read(attempt_id, 1), store.metrics(attempt_id)]


def places(table: str = "series_serieschunk") -> dict[str, int]:
    """Return the number of rows of each partition that has some."""
    with connection.cursor() as cursor:
        cursor.execute(f'SELECT tableoid::regclass::text, count(*) FROM "{table}" GROUP BY 1')
        return dict(cursor.fetchall())


def next_first(table: str = "series_serieschunk") -> int:
    """Return the first attempt beyond all partitions."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_get_expr(relpartbound, oid) FROM pg_inherits JOIN pg_class ON oid = inhrelid"
            " WHERE inhparent = %s::regclass",
            [table],
        )
        return max(int(end) for (bound,) in cursor.fetchall() for end in re.findall(r"TO \('?(\d+)'?\)", bound))


def check_keys() -> None:
    """Check the foreign keys of rows of this transaction; tables with pending checks cannot be changed."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED")


class Touched(dict[str, set[str]]):
    """Statements, and the partitions in their plans."""

    def plan(self, queries: list[dict[str, str]]) -> None:
        with connection.cursor() as cursor:
            for query in queries:
                statement = query["sql"].removeprefix("DECLARE ")
                statement = re.sub(r'^"[^"]*" NO SCROLL CURSOR (WITH(OUT)? HOLD )?FOR ', "", statement)
                is_read = any(f'"{table}"' in statement for table in partitions.TABLES)
                if is_read and statement.startswith(("SELECT", "UPDATE", "DELETE")):
                    cursor.execute(f"EXPLAIN {statement}")
                    plan = "\n".join(line for (line,) in cursor.fetchall())
                    self[statement[:300]] = set(re.findall(r"\b(?:on|using) (series_\w+_(?:p\d+|default))\b", plan))


@contextmanager
def planned() -> Iterator[Touched]:
    """Plan all statements of a block again, after it."""
    touched = Touched()
    with CaptureQueriesContext(connection) as queries:
        yield touched
    touched.plan(queries.captured_queries)


def test_statements_of_a_batch_a_figure_and_a_deletion_read_one_partition(
    make_attempt: MakeAttempt, tmp_path: Path
) -> None:
    attempts = [numbered(make_attempt(), partitions.WIDTH + number) for number in (1, 2)]
    mine = {f"{table}_p{partitions.WIDTH}" for table in partitions.TABLES}
    output = training(12)
    for attempt in attempts:
        fill(attempt.pk)
    with planned() as batches:
        for position in (0, len(output)):
            group = [batch(attempt, position, output) for attempt in attempts]
            services.batches_apply(batches=group)
        services.batch_apply(batch=batch(attempts[0], 2 * len(output), output))
    first = attempts[0]
    with planned() as figures:
        content(first.pk)
        store.read(first.pk, "loss", rank=0, max_points=500, first_step=1_000, last_step=60_000)
        store.read_parts([attempt.pk for attempt in attempts], ["loss"], 500)
        store.read_many([attempt.pk for attempt in attempts], ["loss"])
        store.latest([first.pk], ["loss"])
        store.extent(first.pk, ["loss"], [0])
        list(store.each_rank(first.pk, ["loss"], [0], first_step=0, last_step=100))
        store.metric_names([attempt.pk for attempt in attempts])
        log.log_tail(first.pk)
        operations.steps(first.pk)
    with planned() as moves:
        archive.archive(first.pk, f"file://{tmp_path}")
        archive.restore(first.pk)
        store.delete(first.pk, [("loss", 0)])
    Run.objects.update(state="finished")
    with planned() as removals:
        deletion.experiment_empty(experiment=first.run.experiment)
    for touched, least in ((batches, 5), (figures, 15), (moves, 6), (removals, 8)):
        assert len(touched) >= least
        for statement, names in touched.items():
            assert names, statement
            assert names <= mine, statement
            assert len({name.rpartition("_")[0] for name in names}) == len(names), statement


def test_rows_beyond_the_last_partition_are_stored_and_the_next_partitions_begin_after_them(
    make_attempt: MakeAttempt,
) -> None:
    edge = next_first()
    beyond = numbered(make_attempt(), edge + 10)
    store.append(beyond.pk, {("loss", 0): columns(0, 50)})
    check_keys()
    assert places() == {"series_serieschunk_default": 1}
    assert partitions.extend() > 0
    assert partitions.extend() == 0

    after = numbered(make_attempt(), edge + partitions.WIDTH)
    for attempt, first in ((beyond, 50), (after, 0), (after, 50)):
        store.append(attempt.pk, {("loss", 0): columns(first, first + 50)})
    assert places() == {"series_serieschunk_default": 1, f"series_serieschunk_p{edge + partitions.WIDTH}": 1}
    for attempt in (beyond, after):
        assert store.read(attempt.pk, "loss", rank=0).steps.tolist() == list(range(100))


def test_there_are_partitions_for_attempts_to_come(make_attempt: MakeAttempt) -> None:
    first = next_first()
    numbered(make_attempt(), first + 5 * partitions.WIDTH + 7)
    tasks.extend()
    for table in partitions.TABLES:
        assert next_first(table) == first + (6 + partitions.AHEAD) * partitions.WIDTH
    assert partitions.extend() == 0
    between = numbered(make_attempt(), first + 3 * partitions.WIDTH)
    store.append(between.pk, {("loss", 0): columns(0, 10)})
    assert places() == {f"series_serieschunk_p{first}": 1}


def test_partitions_do_not_wait_for_those_who_write_attempts(make_attempt: MakeAttempt) -> None:
    first = next_first()
    numbered(make_attempt(), first)
    check_keys()
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": psycopg.Cursor}) as other:
        other.execute("LOCK TABLE lab_attempt IN ROW EXCLUSIVE MODE")
        assert partitions.extend() == 0
        other.rollback()
    assert partitions.extend() == len(partitions.TABLES) * (1 + partitions.AHEAD)
