"""An older server on a newer database: it would misread, and damage, what it does not know, so it refuses to serve."""

from __future__ import annotations

import logging
import sys
import time

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from parlab.client.version import VERSION
from parlab.limits import Application, Receive, Scope, Send

AGAIN_S = 10.0
_ALIVE = ("/health",)

logger = logging.getLogger(__name__)


def refusal() -> str:
    """Return why this server must not use its database; empty if it may, or if the database does not answer."""
    try:
        unknown = unknown_migrations()
    except DatabaseError:
        return ""
    if not unknown:
        return ""
    app, name = unknown[0]
    return (
        f"this server is parlab {VERSION}, and its database belongs to a newer release ({len(unknown)} unknown"
        f" migrations, the first {app}.{name}); start the newer release, or restore a backup from before the upgrade"
    )


def unknown_migrations() -> list[tuple[str, str]]:
    """Return the migrations that the database has and this release does not know."""
    disk = MigrationLoader(None, ignore_no_migrations=True)
    known = set(disk.disk_migrations) | {key for row in disk.disk_migrations.values() for key in row.replaces}
    applied = MigrationRecorder(connection).applied_migrations()
    return sorted(key for key in applied if key not in known and key[0] in disk.migrated_apps)


def exit_if_newer() -> None:
    """End this process with the reason, if its database is newer."""
    if reason := refusal():
        sys.exit(f"parlab: {reason}")


class KnownDatabase:
    """ASGI middleware that answers 503 with the reason; it looks once, and again while it refuses."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._reason: str | None = None
        self._looked_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _ALIVE and (reason := await self._current()):
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"retry-after", b"60")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": f"{reason}.\n".encode()})
            return
        await self._application(scope, receive, send)

    async def _current(self) -> str:
        is_old = self._reason is None or (self._reason and time.monotonic() - self._looked_at > AGAIN_S)
        if is_old:
            self._looked_at = time.monotonic()
            self._reason = await sync_to_async(refusal)()
            if self._reason:
                logger.error("%s", self._reason)
        return self._reason or ""
