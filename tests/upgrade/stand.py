"""The processes of a server and one node, each from the code of one release, with data that outlives the release."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from parlab.client.http import Connection, Refused, Unreachable
from parlab.embedded import free_port, redis_command
from tests.faults.postgres import Postgres
from tests.faults.stack import Service
from tests.patience import TRAINING_S, wait_for

SERVER = ("web", "worker", "beat")
NODE = "node"
_TOKEN = """
from django.contrib.auth import get_user_model
from parlab.lab.services import token_create
user = get_user_model().objects.create_superuser("ada", password="correct horse battery")
print("token", token_create(user=user, name="upgrade", by=user)[1])
"""


class Stand:
    """A database, Redis and the services of parlab, all in one directory."""

    def __init__(self, directory: Path, *, has_postgres: bool) -> None:
        for path in (directory, directory / "redis"):
            path.mkdir()
        self.directory = directory
        self.state = directory / NODE
        self.web_port = free_port()
        self.database = Postgres(directory) if has_postgres else None
        self._redis_port = free_port()
        self._services: dict[str, Service] = {}
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PARLAB_", "DJANGO_"))}
        self._environment = {
            **variables,
            "DJANGO_SETTINGS_MODULE": "parlab.settings",
            "REDIS_URL": f"redis://127.0.0.1:{self._redis_port}/0",
            "DATABASE_URL": self.database.start() if self.database else f"sqlite:///{directory}/database.sqlite3",
            "PARLAB_DATA_DIR": str(directory / "data"),
            "PARLAB_SHARED_NODE_KEY": "1",
            "PARLAB_NODE_KEY": "a key that server and node share",
            "PARLAB_ALLOWED_COMMANDS": str(directory / "allowed.json"),
            "PARLAB_HEALTH_SWEEPS": "0",
            "NO_PROXY": "*",
        }
        self._start("redis", directory, redis_command(self._redis_port, directory / "redis"))

    def allow(self, command: list[str]) -> None:
        """Let the node start a command."""
        Path(self._environment["PARLAB_ALLOWED_COMMANDS"]).write_text(json.dumps([command]))

    def manage(self, root: Path, *arguments: str) -> str:
        """Run `manage.py` of a release and return what it wrote."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=root,
            env=self._of(root),
            capture_output=True,
            text=True,
            timeout=TRAINING_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def connection(self, root: Path) -> Connection:
        """Create the first user; return a connection with a token of all permissions."""
        *_, line = self.manage(root, "shell", "-c", _TOKEN).strip().splitlines()
        return Connection(f"http://127.0.0.1:{self.web_port}", line.split()[1])

    def start_server(self, root: Path, api: Connection | None = None) -> None:
        """Start the server of a release, on the same address each time."""
        celery = [sys.executable, "-m", "celery", "-A", "parlab.celery"]
        self._start("worker", root, [*celery, "worker", "--pool=solo", "--queues=control,ingest,backlog"])
        self._start("beat", root, [*celery, "beat", "--pidfile=", f"--schedule={self.directory / 'schedule'}"])
        web = ["uvicorn", "parlab.asgi:application", "--port", str(self.web_port), "--lifespan", "off"]
        self._start("web", root, [sys.executable, "-m", *web])
        if api is not None:
            wait_for(lambda: _answers(api), "the server answers")

    def end_server(self) -> None:
        """End the server as its service manager does."""
        for name in SERVER:
            self._services.pop(name).end(signal.SIGTERM)

    def start_node(self, root: Path) -> None:
        """Start the daemon of a release."""
        argv = [
            sys.executable,
            "-m",
            "runners.daemon",
            "--node",
            NODE,
            "--slots",
            "2",
            "--state-dir",
            str(self.state),
        ]
        self._start(NODE, root, argv)

    def drain_node(self, root: Path) -> None:
        """End the daemon of a release, and let its runs train on."""
        argv = [sys.executable, "-m", "runners.daemon", "drain", "--lease", "1h", "--state-dir", str(self.state)]
        subprocess.run(argv, cwd=root, env=self._of(root), check=True, capture_output=True, timeout=TRAINING_S)
        self._services.pop(NODE).end(signal.SIGTERM)

    def refuses_node(self) -> bool:
        """Return whether the server asks for a newer daemon."""
        return "update its daemon" in (self.directory / "worker.log").read_text(errors="replace")

    def log(self) -> str:
        """Return the end of all logs."""
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-3_000:]}" for path in logs)

    def close(self, root: Path) -> None:
        """End everything, runs included."""
        argv = [sys.executable, "-m", "runners.daemon", "stop-all", "--state-dir", str(self.state)]
        subprocess.run(argv, cwd=root, env=self._of(root), check=False, capture_output=True, timeout=TRAINING_S)
        for name in (*SERVER, NODE, "redis"):
            if name in self._services:
                self._services.pop(name).end(signal.SIGTERM)
        if self.database is not None:
            self.database.close()

    def _of(self, root: Path) -> dict[str, str]:
        return {**self._environment, "PYTHONPATH": str(root)}

    def _start(self, name: str, root: Path, argv: list[str]) -> None:
        self._services[name] = Service(name, argv, self._of(root), self.directory / f"{name}.log", root)
        self._services[name].start()


def _answers(api: Connection) -> bool:
    try:
        api.json("GET", "/api/experiments/")
    except (Unreachable, Refused):
        return False
    return True


def upload(api: Connection, path: Path) -> str:
    """Import a file as a new experiment; return its slug."""
    head = f'--part\r\nContent-Disposition: form-data; name="file"; filename="{path.name}"\r\n\r\n'
    body = head.encode() + path.read_bytes() + b"\r\n--part--\r\n"
    answer, _ = api.request("POST", "/api/imports/", body, {"Content-Type": "multipart/form-data; boundary=part"})
    return str(json.loads(answer)["imports"][0]["experiment"])
