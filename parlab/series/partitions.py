"""The partitions of the tables that grow with each run, on PostgreSQL: a partition has the rows of WIDTH attempts.

Ids of attempts rise, so partitions are also in the order of time, and the statements of a batch or a figure, which name
their attempts, read and lock one of them. Rows of attempts beyond the last partition go to the default partition, so
that no insert ever fails, and stay there: the next partitions begin after them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from typing import Any

from django.db import IntegrityError, OperationalError, connection, transaction

from parlab.series.models import LogChunk, OperationChunk, SeriesChunk, SeriesLevel

log = logging.getLogger(__name__)

TABLES = tuple(model._meta.db_table for model in (SeriesChunk, SeriesLevel, LogChunk, OperationChunk))
WIDTH = 1_000
"""Attempts of a partition: about 7 GB with 200 metrics of 10,000 points each."""
VACUUM = {"scale_factor": "0.02", "threshold": "1000"}
"""Autovacuum of a partition and its large values: the last rows are written again with each batch, so a fifth of the
rows, the default of PostgreSQL, would be dead before they are removed."""
AHEAD = 3
"""Partitions for attempts to come."""
_LOCK = "100ms"
"""How long a new partition may wait for its locks, and others wait behind it."""
_END = re.compile(r"TO \('?(\d+)'?\)")


def divide(table: str) -> None:
    """Make a table the first partition of a new table of its name; no row is moved.

    The new table has the columns, defaults, constraints and indexes of the old one except the primary key, which would
    have to contain the attempt. Does nothing if the table is partitioned already.
    """
    if _one("SELECT relkind FROM pg_class WHERE oid = %s::regclass", table) == "p":
        return
    first, end = f"{table}_p0", _boundary(_newest())
    sequence = f"{table}_id_seq"
    constraints = _rows(
        "SELECT conname, contype, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s::regclass", table
    )
    indexes = _rows(
        "SELECT relname, pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class ON oid = indexrelid"
        " WHERE indrelid = %s::regclass AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)",
        table,
    )
    unused = _one(f'SELECT coalesce(max(id), 0) + 1 FROM "{table}"')
    _do(f'ALTER TABLE "{table}" ALTER id DROP IDENTITY')
    for name, kind, _ in constraints:
        if kind == "p":
            _do(f'ALTER TABLE "{table}" DROP CONSTRAINT "{name}"')
        elif kind == "u":
            _do(f'ALTER TABLE "{table}" RENAME CONSTRAINT "{name}" TO "{name}_p0"')
    for name, _ in indexes:
        _do(f'ALTER INDEX "{name}" RENAME TO "{name}_p0"')
    _do(f'ALTER TABLE "{table}" RENAME TO "{first}"')
    _do(f'CREATE TABLE "{table}" (LIKE "{first}" {_LIKE}) PARTITION BY RANGE (attempt_id)')
    _do(f'CREATE SEQUENCE "{sequence}" START {unused} OWNED BY "{table}".id')
    _do(f'ALTER TABLE "{table}" ALTER id SET DEFAULT nextval(\'"{sequence}"\')')
    for name, kind, definition in constraints:
        if kind in "uf":
            _do(f'ALTER TABLE "{table}" ADD CONSTRAINT "{name}" {definition}')
    for _, definition in indexes:
        _do(definition)
    _do(f'ALTER TABLE "{table}" ATTACH PARTITION "{first}" FOR VALUES FROM (MINVALUE) TO ({end})')
    _do(f'CREATE TABLE "{_default(table)}" PARTITION OF "{table}" DEFAULT')
    for name in partitions(table):
        vacuum_often(name)


def partitions(table: str) -> list[str]:
    query = "SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = %s::regclass"
    return [name for (name,) in _rows(query, table)]


def vacuum_often(name: str) -> None:
    """Have dead rows of a partition removed before they are many."""
    options = [f"{toast}autovacuum_vacuum_{key} = {value}" for toast in ("", "toast.") for key, value in VACUUM.items()]
    _do(f'ALTER TABLE "{name}" SET ({", ".join(options)})')


def rarely_vacuumed() -> list[str]:
    """Return the partitions without these settings."""
    query = "SELECT relname FROM pg_class WHERE relname = ANY(%s) AND NOT coalesce(reloptions, '{}') @> %s"
    names = [name for table in TABLES for name in partitions(table)]
    with connection.cursor() as cursor:
        cursor.execute(query, [names, [f"autovacuum_vacuum_{key}={value}" for key, value in VACUUM.items()]])
        return [name for (name,) in cursor.fetchall()]


_LIKE = "INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE"


def extend(tables: Collection[str] = TABLES) -> int:
    """Create the partitions of the attempts to come where they are missing; return how many.

    Writers of attempts wait for a moment at most: if a lock is not free, nothing is created until the next call.
    """
    if connection.vendor != "postgresql":
        return 0
    count = 0
    for table in tables:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{_LOCK}'")
                cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [table])
                for first, end in list(_missing(table)):
                    # Also locked by the foreign key; first, so that nothing waits for a transaction that waits for it.
                    cursor.execute("LOCK TABLE lab_attempt IN SHARE ROW EXCLUSIVE MODE")
                    _add(table, first, end)
                    count += 1
        except (OperationalError, IntegrityError) as error:  # a lock, or a row of these attempts, is in the way
            log.info("partitions of %s are not created now: %s", table, str(error).strip())
    return count


def _missing(table: str) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the partitions that a table lacks, each up to a multiple of WIDTH."""
    bounds = _rows(
        "SELECT pg_get_expr(relpartbound, oid) FROM pg_inherits JOIN pg_class ON oid = inhrelid"
        " WHERE inhparent = %s::regclass",
        table,
    )
    first = max(int(match[1]) for (bound,) in bounds if (match := _END.search(bound)))
    last_default = _one(f'SELECT max(attempt_id) FROM "{_default(table)}"')
    if last_default is not None:
        first = max(first, _boundary(last_default))
    next_boundary = _boundary(_newest())
    while first < next_boundary + AHEAD * WIDTH:
        # After a gap, one partition has all attempts that have no rows yet.
        end = max(first + WIDTH, next_boundary)
        yield first, end
        first = end


def _add(table: str, first: int, end: int) -> None:
    """Create a partition; unlike PARTITION OF, ATTACH does not lock those who read and write the others."""
    name = f"{table}_p{first}"
    _do(f'CREATE TABLE "{name}" (LIKE "{table}" {_LIKE})')
    vacuum_often(name)
    _do(f'ALTER TABLE "{table}" ATTACH PARTITION "{name}" FOR VALUES FROM ({first}) TO ({end})')


def _default(table: str) -> str:
    return f"{table}_default"


def _newest() -> int:
    return int(_one("SELECT coalesce(max(id), 0) FROM lab_attempt"))


def _boundary(attempt_id: int) -> int:
    """Return the first id of an attempt after this one at which a partition may begin."""
    return (attempt_id // WIDTH + 1) * WIDTH


def _do(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _rows(query: str, *parameters: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters or None)
        return list(cursor.fetchall())


def _one(query: str, *parameters: str) -> Any:
    ((value,),) = _rows(query, *parameters)
    return value
