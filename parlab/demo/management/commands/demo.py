"""`manage.py demo`: run all processes of parlab on this machine until Ctrl-C."""

import logging
import os
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand

from parlab.demo import content, slower
from parlab.demo.sweeps import POOL
from parlab.lab.services.access.tokens import token_create
from parlab.serve.accounts import first_user
from parlab.serve.processes import Child
from parlab.serve.stack import Stack

HOST = "127.0.0.1"


class Command(BaseCommand):
    help = "Run all of parlab on this machine (Redis, web server, workers, a runner daemon) until Ctrl-C."
    requires_system_checks: list[str] = []
    scripts: Child | None = None
    """The scripts that report to a fresh demo; they end by themselves."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--port", type=int, default=int(os.environ.get("PORT", "8000")), help="first port to try (web server)"
        )
        redis_port = int(os.environ.get("REDIS_PORT", "16399"))
        parser.add_argument("--redis-port", type=int, default=redis_port, help="first port to try (embedded Redis)")

    def handle(self, *args: Any, port: int, redis_port: int, **options: Any) -> None:
        self.data: Path = settings.DATA_DIR
        self.stack = Stack(self.data, self._say)
        with self.stack.running() as note:
            try:
                note(self._start(port, redis_port))
                self.stack.watch()
            finally:
                if self.scripts is not None:
                    self.scripts.stop(timeout=3)

    def _say(self, line: str) -> None:
        self.stdout.write(f"parlab: {line}")
        self.stdout.flush()

    def _start(self, port: int, redis_port: int) -> str:
        stack = self.stack
        # Sweeps of a node would wait for the sweeps of the demo and disturb them; the page of the node has a button.
        stack.environment.setdefault("PARLAB_HEALTH_SWEEPS", "0")
        stack.start_redis(redis_port)
        stack.prepare()
        # The terminal shows only the address and login, not the imports of the demo contents.
        logging.getLogger("parlab.ingest").setLevel(logging.WARNING)
        user, password = first_user(content.DEMO_USER, self.data / "demo_password")
        is_fresh = content.demo_experiments(user)
        web_port = stack.port("web server", port, "PORT")
        self._say("starting")
        stack.environment.setdefault("PARLAB_WATCH_PATHS", str(slower.directory()))
        if "PARLAB_ALLOWED_COMMANDS" not in stack.environment:
            allowed = content.allow_commands(self.data / "allowed_commands.json")
            stack.environment["PARLAB_ALLOWED_COMMANDS"] = str(allowed)
        stack.start_daemon(self.data / "runner")
        url = stack.start_server(HOST, web_port)
        stack.wait_until_ready(HOST, web_port)
        if is_fresh:
            self._report_from_outside(url, user)
        self._say(f"{url}  {user.username}  {password}")
        # After the address, because they are needed only for the sweep over three nodes.
        self._start_nodes()
        return url

    def _start_nodes(self) -> None:
        """Start three daemons: network namespaces if that is permitted, else addresses of loopback."""
        stack, directories = self.stack, [self.data / "nodes" / str(node) for node in range(3)]
        url = urlsplit(stack.environment["REDIS_URL"])
        relay = ["--relay", str(url.port or 6379)] if url.hostname == "127.0.0.1" else []
        nodes = [sys.executable, "-m", "runners.links.nodes", "--count", str(len(directories)), *relay]
        daemon = [sys.executable, "-m", "runners.node.daemon", "--pool", POOL, "--no-measure"]
        daemon += ["--node", "demo-{node}", "--address", "{address}"]
        stack.node_dirs += directories
        stack.start("nodes", [*nodes, "--", *daemon, "--state-dir", str(self.data / "nodes" / "{node}")])

    def _report_from_outside(self, url: str, user: User) -> None:
        """Start the scripts whose runs come in from outside; nothing waits for them."""
        _, secret = token_create(user=user, name="scripts of the demo", by=user)
        home = self.data / "scripts"
        variables = {"PARLAB_URL": url, "PARLAB_TOKEN": secret, "PARLAB_HOME": str(home), "GIT_PYTHON_REFRESH": "quiet"}
        variables |= {"MLFLOW_TRACKING_URI": url, "MLFLOW_TRACKING_TOKEN": secret, "MLFLOW_DISABLE_TELEMETRY": "true"}
        argv = [sys.executable, "-m", "parlab.demo.reporting"]
        self.scripts = Child(
            "scripts", argv, {**self.stack.environment, **variables}, self.data / "log" / "scripts.log"
        )
        self.scripts.start()
