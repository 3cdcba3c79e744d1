"""Databases of earlier releases: 0.1.0 goes on, and an older one is refused with the commit to pass through."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from parlab.lab.management.commands.migrate import RELEASE_0_1, missing_migrations

pytestmark = pytest.mark.django_db


def record_release_0_1() -> MigrationRecorder:
    """Record the migrations of 0.1.0 and not those that replace them, as a database of that release does."""
    recorder = MigrationRecorder(connection)
    for (app, name), migration in MigrationLoader(None).disk_migrations.items():
        if migration.replaces:
            recorder.record_unapplied(app, name)
    return recorder


def test_a_database_of_0_1_needs_no_migration() -> None:
    record_release_0_1()
    assert missing_migrations("default") == []
    assert ("lab", "0001_release_0_1") in MigrationLoader(connection).applied_migrations


def test_a_partly_migrated_database_is_told_the_commit_to_pass_through() -> None:
    record_release_0_1().record_unapplied("lab", "0037_token_parents")
    assert missing_migrations("default") == [("lab", "0037_token_parents")]
    with pytest.raises(CommandError, match=rf"lab\.0037_token_parents: check out commit {RELEASE_0_1}"):
        call_command("migrate")
