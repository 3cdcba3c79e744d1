"""Databases of earlier releases: 0.1.0 goes on, and an older one is refused with the commit to pass through."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from parlab.lab.management.commands.migrate import RELEASE_0_1, missing_migrations
from parlab.newer_database import KnownDatabase, exit_if_newer, refusal, unknown_migrations

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


def test_a_server_refuses_the_database_of_a_newer_release() -> None:
    assert unknown_migrations() == []
    assert refusal() == ""
    MigrationRecorder(connection).record_applied("lab", "0999_from_the_future")
    MigrationRecorder(connection).record_applied("removed_app", "0001_initial")
    assert unknown_migrations() == [("lab", "0999_from_the_future")]
    with pytest.raises(CommandError, match=r"belongs to a newer release .*lab\.0999_from_the_future.*start the newer"):
        call_command("migrate")
    with pytest.raises(SystemExit, match="newer release"):
        exit_if_newer()


@pytest.mark.parametrize(("reason", "path", "status"), [("it is newer", "/", 503), ("it is newer", "/health", 200)])
def test_each_address_says_why_it_refuses(monkeypatch: pytest.MonkeyPatch, reason: str, path: str, status: int) -> None:
    monkeypatch.setattr("parlab.newer_database.refusal", lambda: reason)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    asyncio.run(KnownDatabase(application)({"type": "http", "path": path}, None, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == status
    assert (reason in sent[-1].get("body", b"").decode()) is (status == 503)


def test_a_partly_migrated_database_is_told_the_commit_to_pass_through() -> None:
    record_release_0_1().record_unapplied("lab", "0037_token_parents")
    assert missing_migrations("default") == [("lab", "0037_token_parents")]
    with pytest.raises(CommandError, match=rf"lab\.0037_token_parents: check out commit {RELEASE_0_1}"):
        call_command("migrate")
