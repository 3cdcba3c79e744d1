"""One migrated test database: the first worker that needs a database migrates it, the others copy it.

It is kept for later sessions in build/, under a digest of what makes it.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import sqlite3
import subprocess
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import django
from django.apps import apps
from django.conf import settings
from django.db import connection
from psycopg import sql
from psycopg.conninfo import make_conninfo

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
    """The kept copy of the migrated database; one worker of a test session at a time asks for it."""

    def __init__(self) -> None:
        self._lock = (Path(settings.DATA_DIR) / "template.lock").open("a+")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._kept = KEPT / f"{digest()}.{connection.vendor}"
        self._name: str = connection.creation._get_test_db_name()  # type: ignore[attr-defined]  # not in the stubs

    def copy(self) -> bool:
        """Create the database of this worker from the kept one; return whether there is one.

        Where there is none, migrations render thousands of models: without collection of garbage in a third less time.
        """
        if not self._kept.exists():
            gc.disable()
            return False
        if connection.vendor == "sqlite":
            shutil.copyfile(self._kept, self._name)
        else:
            with connection._nodb_cursor() as cursor:
                cursor.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self._name)))
            self._postgres("pg_restore", "--single-transaction", str(self._kept))
        return True

    def save(self, is_copy: bool) -> None:
        """Keep the database of this worker unless it is a copy, and let the next worker go on."""
        if not is_copy:
            gc.enable()
            KEPT.mkdir(parents=True, exist_ok=True)
            whole = self._kept.with_suffix(f".{os.getpid()}")
            if connection.vendor == "sqlite":
                with connection.cursor() as cursor:
                    cursor.execute("VACUUM INTO %s", [str(whole)])
            else:
                self._postgres("pg_dump", "--format=custom", f"--file={whole}")
            whole.replace(self._kept)
            newest_first = sorted(KEPT.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
            for path in newest_first[KEPT_FILES:]:
                path.unlink(missing_ok=True)
        self._lock.close()

    def _postgres(self, program: str, *arguments: str) -> None:
        given = connection.get_connection_params()
        server = {name: given[name] for name in ("host", "port", "user") if name in given}
        subprocess.run([program, f"--dbname={make_conninfo(**server, dbname=self._name)}", *arguments], check=True)
