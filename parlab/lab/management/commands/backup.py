import json
import os
import shutil
import sqlite3
import subprocess
from argparse import ArgumentParser
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from parlab.lab.services import stored_files

KEYS = ("secret_key", "node_key")
DATABASES = {"sqlite": "database.sqlite3", "postgresql": "database.dump"}
MANIFEST = "manifest.json"


class Command(BaseCommand):
    help = (
        "Write the database, the keys and the artifacts of reported runs to a new directory, while the server runs; or,"
        " with --restore, bring them back into an empty database and data directory, and migrate them."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path)
        parser.add_argument("--restore", action="store_true", help="read the directory instead of writing it")
        parser.add_argument("--no-artifacts", action="store_true", help="without the files that scripts reported")

    def handle(self, *args: Any, directory: Path, restore: bool, no_artifacts: bool, **options: Any) -> None:
        database = directory / DATABASES[connection.vendor]
        if restore:
            self._restore(directory, database)
        else:
            self._write(directory, with_artifacts=not no_artifacts)

    def _write(self, directory: Path, *, with_artifacts: bool) -> None:
        if directory.exists():
            raise CommandError(f"{directory} exists; choose a directory that does not, such as one named by the date")
        draft = directory.with_name(f".{directory.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True, mode=0o700)
        # The database comes first: artifacts that it names are never changed, only added.
        _dump(draft / DATABASES[connection.vendor])
        for name, key in zip(KEYS, (settings.SECRET_KEY, settings.NODE_KEY.decode()), strict=True):
            (draft / name).write_text(key)
        if with_artifacts:
            stored_files.files_copy(draft / "artifacts")
        migrations = sorted(f"{app}.{name}" for app, name in MigrationRecorder(connection).applied_migrations())
        manifest = {"written_at": timezone.now().isoformat(), "migrations": migrations}
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=1))
        draft.rename(directory)
        self.stdout.write(f"{directory}: {sum(path.stat().st_size for path in directory.rglob('*')):,} bytes")

    def _restore(self, directory: Path, database: Path) -> None:
        try:
            manifest = json.loads((directory / MANIFEST).read_text())
        except (FileNotFoundError, ValueError) as error:
            raise CommandError(f"{directory} is no whole backup: {error}") from error
        if not database.exists():
            other = next(vendor for vendor in DATABASES if vendor != connection.vendor)
            raise CommandError(f"{directory} is a backup of {other}; set DATABASE_URL to such a database")
        if connection.introspection.table_names():
            raise CommandError("the database is not empty; set DATABASE_URL or PARLAB_DATA_DIR to a new one")
        connection.close()
        _load(database)
        for name in KEYS:
            path = Path(settings.DATA_DIR) / name
            path.touch(mode=0o600)
            path.write_text((directory / name).read_text())
        if (directory / "artifacts").is_dir():
            stored_files.files_restore(directory / "artifacts")
        call_command("migrate", verbosity=0)
        self.stdout.write(f"restored what was written at {manifest['written_at']}; start the server")


def _dump(target: Path) -> None:
    """Write the database as it is at one moment."""
    if connection.vendor == "sqlite":
        copy_sqlite(_sqlite_path(), target)
    else:
        _postgres("pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={target}")


def _load(source: Path) -> None:
    """Fill the empty database, as a whole or not at all."""
    if connection.vendor == "sqlite":
        copy_sqlite(source, _sqlite_path())
    else:
        _postgres("pg_restore", "--no-owner", "--no-privileges", "--single-transaction", str(source))


def _postgres(program: str, *arguments: str) -> None:
    """Run a program of PostgreSQL on the database; the password stays out of the list of processes."""
    names = {option.keyword.decode() for option in Conninfo.get_defaults()}
    parameters = {name: value for name, value in connection.get_connection_params().items() if name in names}
    environment = {**os.environ, "PGPASSWORD": str(parameters.pop("password", "") or "")}
    command = [program, f"--dbname={make_conninfo(**parameters)}", *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CommandError(f"{program} is not on PATH; install the client programs of PostgreSQL") from error
    if done.returncode:
        raise CommandError(f"{program} failed: {done.stderr.strip()[-2_000:]}")


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a database, consistently also while it is written."""
    with (
        closing(sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True)) as read,
        closing(sqlite3.connect(target)) as write,
    ):
        read.backup(write)


def _sqlite_path() -> Path:
    return Path(connection.settings_dict["NAME"])
