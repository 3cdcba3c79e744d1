"""One migrated test database: the first worker that needs a database migrates it, the others copy it.

On SQLite it is kept for later sessions in build/, under a digest of what makes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import django
from django.apps import apps
from django.conf import settings
from django.db import connection
from psycopg import sql

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "test-databases"
KEPT_FILES = 4
FILLED_FROM = ("parlab/planner/job/hardware.py", "parlab/series/partitions.py")
"""What migrations ask beside themselves."""


def digest() -> str:
    """Return a digest of all migrations, of what they ask, and of the versions that carry them out."""
    made = sha256(f"{django.VERSION} {sqlite3.sqlite_version} {settings.INSTALLED_APPS}".encode())
    modules = (find_spec(f"{app.name}.migrations") for app in apps.get_app_configs())
    folders = [Path(place) for module in modules if module for place in module.submodule_search_locations or ()]
    files = [file for folder in sorted(folders) for file in sorted(folder.glob("*.py"))]
    for file in (*files, *(ROOT / name for name in FILLED_FROM)):
        made.update(file.name.encode() + file.read_bytes())
    return made.hexdigest()[:20]


class Template:
    """A copy of the migrated database, in the directory that all workers of a test session share."""

    def __init__(self) -> None:
        self._lock = (Path(settings.DATA_DIR) / "template.lock").open("a+")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._path = Path(settings.DATA_DIR) / "template.sqlite3"
        self._database = "parlab_template"
        self._is_sqlite = connection.vendor == "sqlite"
        self._kept = KEPT / f"{digest()}.sqlite3"
        self._name: str = connection.creation._get_test_db_name()  # type: ignore[attr-defined]  # not in the stubs

    def copy(self) -> bool:
        """Create the database of this worker from the template; return whether there is one."""
        if self._is_sqlite:
            known = next((path for path in (self._path, self._kept) if path.exists()), None)
            if known is not None:
                shutil.copyfile(known, self._name)
            return known is not None
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
                self._keep()
            else:
                connection.close()
                self._clone(self._name, self._database)
        self._lock.close()

    def _keep(self) -> None:
        KEPT.mkdir(parents=True, exist_ok=True)
        whole = self._kept.with_suffix(f".{os.getpid()}")
        shutil.copyfile(self._path, whole)
        whole.replace(self._kept)
        newest_first = sorted(KEPT.glob("*.sqlite3"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in newest_first[KEPT_FILES:]:
            path.unlink(missing_ok=True)

    @staticmethod
    def _clone(source: str, target: str) -> None:
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(target), sql.Identifier(source))
        with connection._nodb_cursor() as cursor:
            cursor.execute(statement)
