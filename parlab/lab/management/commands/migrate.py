"""`manage.py migrate`, which refuses a database of a release before 0.1.0 instead of creating its tables twice."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.core.management.commands import migrate
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from parlab.newer_database import refusal

RELEASE_0_1 = "48c45af7"
"""The commit of 0.1.0, the last one with the migrations that `release_0_1` of each app replaces."""


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> Any:
        if missing := missing_migrations(options["database"]):
            app, name = missing[0]
            raise CommandError(
                f"this database lacks {len(missing)} migrations of 0.1.0, the first {app}.{name}: check out commit"
                f" {RELEASE_0_1}, run `python manage.py migrate` there, and then repeat this command"
            )
        if reason := refusal():
            raise CommandError(reason)
        return super().handle(*args, **options)


def missing_migrations(database: str) -> list[tuple[str, str]]:
    """Return the replaced migrations that a partly migrated database lacks; nothing for an empty or complete one."""
    applied = set(MigrationRecorder(connections[database]).applied_migrations())
    migrations = MigrationLoader(None, ignore_no_migrations=True).disk_migrations
    missing: list[tuple[str, str]] = []
    for key, migration in migrations.items():
        replaced = set(migration.replaces)
        if key not in applied and replaced & applied:
            missing += sorted(replaced - applied)
    return missing
