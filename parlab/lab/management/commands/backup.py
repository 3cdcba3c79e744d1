import json
import shutil
import sqlite3
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

KEYS = ("secret_key", "node_key")
DATABASE, MANIFEST = "database.sqlite3", "manifest.json"


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
        if connection.vendor != "sqlite":
            raise CommandError("for SQLite only; use pg_dump and pg_restore for PostgreSQL, see docs/operations.md")
        if restore:
            self._restore(directory)
        else:
            self._write(directory, with_artifacts=not no_artifacts)

    def _write(self, directory: Path, *, with_artifacts: bool) -> None:
        if directory.exists():
            raise CommandError(f"{directory} exists; choose a directory that does not, such as one named by the date")
        draft = directory.with_name(f".{directory.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True, mode=0o700)
        # The database comes first: artifacts that it names are never changed, only added.
        copy_sqlite(_sqlite_path(), draft / DATABASE)
        for name, key in zip(KEYS, (settings.SECRET_KEY, settings.NODE_KEY.decode()), strict=True):
            (draft / name).write_text(key)
        if with_artifacts and Path(settings.ARTIFACTS_DIR).is_dir():
            shutil.copytree(settings.ARTIFACTS_DIR, draft / "artifacts")
        migrations = sorted(f"{app}.{name}" for app, name in MigrationRecorder(connection).applied_migrations())
        manifest = {"written_at": timezone.now().isoformat(), "migrations": migrations}
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=1))
        draft.rename(directory)
        self.stdout.write(f"{directory}: {sum(path.stat().st_size for path in directory.rglob('*')):,} bytes")

    def _restore(self, directory: Path) -> None:
        try:
            manifest = json.loads((directory / MANIFEST).read_text())
        except (FileNotFoundError, ValueError) as error:
            raise CommandError(f"{directory} is no whole backup: {error}") from error
        if connection.introspection.table_names():
            raise CommandError("the database is not empty; set DATABASE_URL or PARLAB_DATA_DIR to a new one")
        connection.close()
        copy_sqlite(directory / DATABASE, _sqlite_path())
        for name in KEYS:
            path = Path(settings.DATA_DIR) / name
            path.touch(mode=0o600)
            path.write_text((directory / name).read_text())
        if (directory / "artifacts").is_dir():
            shutil.copytree(directory / "artifacts", settings.ARTIFACTS_DIR, dirs_exist_ok=True)
        call_command("migrate", verbosity=0)
        self.stdout.write(f"restored what was written at {manifest['written_at']}; start the server")


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy a database, consistently also while it is written."""
    with (
        closing(sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True)) as read,
        closing(sqlite3.connect(target)) as write,
    ):
        read.backup(write)


def _sqlite_path() -> Path:
    return Path(connection.settings_dict["NAME"])
