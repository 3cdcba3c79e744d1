"""The statements of every batch, as SQL: the ORM takes ten times as long to compile one as SQLite takes to run it."""

from __future__ import annotations

from collections.abc import Sequence
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


def quoted(columns: Sequence[str]) -> str:
    """Write the names of columns; some are words of SQL."""
    return ", ".join(f'"{name}"' for name in columns)
