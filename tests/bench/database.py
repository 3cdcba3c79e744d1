"""The benchmarks' own database with production settings, and the table to which they compare."""

import sqlite3
from itertools import count
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection, models

from parlab.lab.models import Attempt, Config, Experiment, Member, Node, Run
from parlab.series.columns import Columns
from runners.config import RunConfig, digest

RANKS = 3
_numbers = count(1)


class PointRow(models.Model):
    """The alternative storage of series: one row per point, with the index that reading needs."""

    attempt = models.ForeignKey("lab.Attempt", models.CASCADE, related_name="+", db_index=False)
    metric = models.CharField(max_length=80)
    rank = models.IntegerField()
    step = models.BigIntegerField()
    time = models.FloatField()
    value = models.FloatField()

    class Meta:
        app_label = "bench"
        indexes = [models.Index(fields=["attempt", "metric", "rank", "step"], name="point_row")]

    def __str__(self) -> str:
        return f"{self.metric} at {self.step}"


def create() -> None:
    """Create the tables in the configured database."""
    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:
        editor.create_model(PointRow)


def new_attempt() -> Attempt:
    """Create a run of three ranks with a running attempt."""
    number = next(_numbers)
    user, _ = get_user_model().objects.get_or_create(username="bench")
    experiment, _ = Experiment.objects.get_or_create(slug="bench", defaults={"name": "bench", "owner": user})
    data: dict[str, Any] = {
        "model": {"num_layers": RANKS},
        "parallel": {"pipeline_parallel_size": RANKS},
        "train": {"seed": number},
    }
    config = Config.objects.create(
        experiment=experiment, version=number, data=data, digest=digest(data), created_by=user
    )
    run = Run.objects.create(
        experiment=experiment,
        config=config,
        number=number,
        point_digest=digest({}),
        resolved=RunConfig.model_validate(data).resolved(),
        state="running",
        created_by=user,
    )
    attempt = Attempt.objects.create(run=run, number=1, state="running")
    node, _ = Node.objects.get_or_create(name="bench")
    Member.objects.create(attempt=attempt, node=node, state="running")
    return attempt


def insert_rows(attempt_id: int, metric: str, rank: int, columns: Columns) -> None:
    """Fill the table of point rows as fast as the database can, for benchmarks that do not measure inserts."""
    table, names = PointRow._meta.db_table, "(attempt_id, metric, rank, step, time, value)"
    points = zip(columns.steps.tolist(), columns.times.tolist(), columns.values.tolist(), strict=True)
    with connection.cursor() as cursor:
        raw: Any = cursor.cursor
        if connection.vendor == "postgresql":
            with raw.copy(f"COPY {table} {names} FROM STDIN") as copy:
                for point in points:
                    copy.write_row((attempt_id, metric, rank, *point))
            return
        raw.execute("BEGIN")
        insert = f"INSERT INTO {table} {names} VALUES ({attempt_id}, '{metric}', {rank}, ?, ?, ?)"
        sqlite3.Cursor.executemany(raw, insert, points)
        raw.execute("COMMIT")


def used_bytes() -> int:
    """Return the bytes of tables and indexes; in SQLite without free pages, which are part of PostgreSQL's tables."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_database_size(current_database())")
            return int(cursor.fetchone()[0])
        pages, free, page_size = (
            cursor.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * page_size)
