"""One migrated test database: the first worker that needs a database migrates it, the others copy it."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

from django.conf import settings
from django.db import connection
from psycopg import sql


class Template:
    """A copy of the migrated database, in the directory that all workers of a test session share."""

    def __init__(self) -> None:
        self._lock = (Path(settings.DATA_DIR) / "template.lock").open("a+")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._path = Path(settings.DATA_DIR) / "template.sqlite3"
        self._database = "parlab_template"
        self._is_sqlite = connection.vendor == "sqlite"
        self._name: str = connection.creation._get_test_db_name()  # type: ignore[attr-defined]  # not in the stubs

    def copy(self) -> bool:
        """Create the database of this worker from the template; return whether there is one."""
        if self._is_sqlite:
            if self._path.exists():
                shutil.copyfile(self._path, self._name)
            return self._path.exists()
        with connection._nodb_cursor() as cursor:
            cursor.execute("SELECT FROM pg_database WHERE datname = %s", [self._database])
            if cursor.fetchone() is None:
                return False
        self._clone(self._database, self._name)
        return True

    def save(self, is_copy: bool) -> None:
        """Make the database of this worker the template unless it is a copy, and let the next worker go on."""
        if not is_copy:
            if self._is_sqlite:
                with connection.cursor() as cursor:
                    cursor.execute("VACUUM INTO %s", [str(self._path)])
            else:
                connection.close()
                self._clone(self._name, self._database)
        self._lock.close()

    @staticmethod
    def _clone(source: str, target: str) -> None:
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(target), sql.Identifier(source))
        with connection._nodb_cursor() as cursor:
            cursor.execute(statement)
