"""The statements of every batch and of every curve, as SQL.

The ORM takes ten times as long to compile one as SQLite takes to run it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from django.db import connection, models


class Upsert:
    """Inserts rows of a model, and updates those that exist by a unique constraint."""

    def __init__(
        self, model: type[models.Model], columns: Sequence[str], unique: Sequence[str], where: str = ""
    ) -> None:
        """`where` decides whether an existing row, `held`, gives way to the new one, `EXCLUDED`."""
        names, marks = quoted(columns), ", ".join(["%s"] * len(columns))
        updates = ", ".join(f'"{name}" = EXCLUDED."{name}"' for name in columns if name not in unique)
        self._sql = (
            f'INSERT INTO "{model._meta.db_table}" AS held ({names}) VALUES ({marks})'
            f" ON CONFLICT ({quoted(unique)}) DO UPDATE SET {updates}{f' WHERE {where}' if where else ''}"
        )

    def __call__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            with connection.cursor() as cursor:
                cursor.executemany(self._sql, rows)


class Delete:
    """Deletes rows of a model by the columns of a unique constraint."""

    def __init__(self, model: type[models.Model], unique: Sequence[str]) -> None:
        key = " AND ".join(f'"{name}" = %s' for name in unique)
        self._sql = f'DELETE FROM "{model._meta.db_table}" WHERE {key}'

    def __call__(self, keys: Sequence[tuple[Any, ...]]) -> None:
        if keys:
            with connection.cursor() as cursor:
                cursor.executemany(self._sql, keys)


def quoted(columns: Sequence[str]) -> str:
    """Write the names of columns; some are words of SQL."""
    return ", ".join(f'"{name}"' for name in columns)


class Select:
    """Reads columns of rows of a model: of all that a condition selects, or of the first `limit`."""

    def __init__(
        self, model: type[models.Model], columns: Sequence[str], order: Sequence[str], limit: int | None = None
    ) -> None:
        self._sql = f'SELECT {quoted(columns)} FROM "{model._meta.db_table}" WHERE '
        self._order = f" ORDER BY {', '.join(order)}{f' LIMIT {limit}' if limit else ''}"

    def __call__(self, where: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(f"{self._sql}{where}{self._order}", parameters)
            return list(cursor.fetchall())


def one_of(column: str, values: Collection[Any]) -> str:
    """Write the condition that a column has one of at least one value."""
    return f'"{column}" IN ({", ".join(["%s"] * len(values))})'


class Update:
    """Updates columns of rows by their primary keys."""

    def __init__(self, model: type[models.Model], columns: Sequence[str]) -> None:
        self._fields = [field for field in model._meta.concrete_fields if field.name in columns]
        sets = ", ".join(f'"{field.column}" = %s' for field in self._fields)
        self._sql = f'UPDATE "{model._meta.db_table}" SET {sets} WHERE "id" = %s'

    def __call__(self, rows: Sequence[models.Model]) -> None:
        if rows:
            with connection.cursor() as cursor:
                cursor.executemany(self._sql, [(*self._values(row), row.pk) for row in rows])

    def _values(self, row: models.Model) -> Iterator[Any]:
        for field in self._fields:
            yield field.get_db_prep_save(getattr(row, field.attname), connection)


def delete_some(model: type[models.Model], attempt_id: int, limit: int) -> int:
    """Delete up to so many rows of an attempt; return how many."""
    table = model._meta.db_table
    some = f'SELECT {{}} FROM "{table}" WHERE "attempt_id" = %s LIMIT %s'
    if connection.vendor == "postgresql":
        # Partitions have no index by id. All rows of an attempt are in one partition, where their places are unique.
        where = f'"attempt_id" = %s AND ctid = ANY(ARRAY({some.format("ctid")}))'
        parameters = [attempt_id, attempt_id, limit]
    else:
        where, parameters = f'"id" IN ({some.format(quoted(["id"]))})', [attempt_id, limit]
    with connection.cursor() as cursor:
        cursor.execute(f'DELETE FROM "{table}" WHERE {where}', parameters)
        return int(cursor.rowcount)
