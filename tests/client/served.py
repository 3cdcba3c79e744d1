"""A server of its own: one real process with its own data, as people run it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from parlab.client.http import Connection, Unreachable
from parlab.embedded import free_port
from tests.client.conftest import ROOT
from tests.patience import wait_for

_SERVER = """
import sys
import django
django.setup()
from django.contrib.auth import get_user_model
from django.core.management import call_command
import uvicorn
from parlab.lab.services.access.tokens import token_create
call_command("migrate", verbosity=0)
users = get_user_model().objects
user = users.filter(username="ada").first() or users.create_superuser("ada", password="correct horse battery")
print(token_create(user=user, name=f"scripts {user.api_tokens.count()}", by=user)[1], flush=True)
uvicorn.run("parlab.asgi:application", port=int(sys.argv[1]), log_level="warning")
"""


class Served(NamedTuple):
    """Address of a running server, and a token with all permissions."""

    url: str
    token: str

    @property
    def variables(self) -> dict[str, str]:
        """Variables that point parlab's client and MLflow's to the server."""
        own = {"PARLAB_URL": self.url, "PARLAB_TOKEN": self.token, "NO_PROXY": "*"}
        return {**own, "MLFLOW_TRACKING_URI": self.url, "MLFLOW_TRACKING_TOKEN": self.token}

    def connection(self) -> Connection:
        return Connection(self.url, self.token)


@contextmanager
def served(directory: Path, port: int | None = None) -> Iterator[Served]:
    """Start a server with the data of a directory, at first none; it ends with the block."""
    port = port or free_port()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PARLAB_")}
    variables |= {"PARLAB_DATA_DIR": str(directory), "REDIS_URL": "redis://127.0.0.1:1/0", "LOG_LEVEL": "WARNING"}
    variables |= {"DJANGO_SETTINGS_MODULE": "parlab.settings", "PYTHONPATH": str(ROOT)}
    variables.pop("DATABASE_URL", None)
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(port)], env=variables, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        server = Served(f"http://127.0.0.1:{port}", process.stdout.readline().strip())
        wait_for(lambda: process.poll() is not None or _answers(server), "the server answers")
        assert process.poll() is None, "the server has ended"
        yield server
    finally:
        process.terminate()
        process.communicate()


def _answers(server: Served) -> bool:
    try:
        server.connection().json("GET", "/api/experiments/")
    except Unreachable:
        return False
    return True
