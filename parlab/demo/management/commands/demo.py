"""`manage.py demo`: run all processes of parlab on this machine until Ctrl-C."""

import fcntl
import logging
import os
import secrets
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from argparse import ArgumentParser
from io import StringIO
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from parlab.demo import content
from parlab.demo.processes import Child, ProcessFailed
from parlab.demo.sweeps import POOL
from parlab.embedded import free_port, redis_command
from parlab.lab.models import Node
from parlab.lab.services.access.groups import groups_refresh
from parlab.lab.services.access.tokens import token_create

READY_TIMEOUT_S = 300


class Command(BaseCommand):
    help = "Run all of parlab on this machine (Redis, web server, workers, a runner daemon) until Ctrl-C."
    requires_system_checks: list[str] = []
    children: list[Child]
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
        self.children = []
        for number in _ENDING:
            signal.signal(number, _interrupt)
        with (self.data / "demo.lock").open("a+") as lock:
            self._take_lock(lock)
            try:
                url = self._start(port, redis_port)
                lock.truncate(0)
                lock.write(f"{url} (process {os.getpid()})")
                lock.flush()
                self._watch()
            except KeyboardInterrupt:
                self._say("stopping")
            except ProcessFailed as error:
                raise CommandError(str(error)) from error
            finally:
                self._stop()
                lock.truncate(0)

    def _say(self, line: str) -> None:
        self.stdout.write(f"parlab: {line}")
        self.stdout.flush()

    def _take_lock(self, lock: TextIO) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CommandError(
                f"already running with the data in {self.data}: {lock.read() or 'starting'}."
                " Stop it first, or set PARLAB_DATA_DIR to another directory."
            ) from None

    def _start(self, port: int, redis_port: int) -> str:
        self.environment = {**os.environ, "PARLAB_DATA_DIR": str(self.data), "PYTHONUNBUFFERED": "1"}
        # Sweeps of a node would wait for the sweeps of the demo and disturb them; the page of the node has a button.
        self.environment.setdefault("PARLAB_HEALTH_SWEEPS", "0")
        (self.data / "log").mkdir(exist_ok=True)
        self._start_redis(redis_port)
        self._say("preparing the database and static files")
        call_command("migrate", verbosity=0)
        _collect_static()
        groups_refresh()
        # The terminal shows only the address and login, not the imports of the demo contents.
        logging.getLogger("parlab.ingest").setLevel(logging.WARNING)
        user, password = content.demo_user(self.data / "demo_password")
        is_fresh = content.demo_experiments(user)
        web_port = self._port("web server", port, "PORT")
        self._say("starting")
        python = [sys.executable, "-m"]
        celery = [*python, "celery", "-A", "parlab.celery"]
        quiet = ["--without-gossip", "--without-mingle", "--loglevel=INFO"]
        self._child("worker", [*celery, "worker", "--pool=solo", "--queues=control,ingest,backlog", *quiet])
        drawing = ["worker", "--pool=solo", "--queues=pictures,notify", "--hostname=pictures@%h"]
        self._child("pictures", [*celery, *drawing, *quiet])
        self._child("beat", [*celery, "beat", "--pidfile="])
        if "PARLAB_ALLOWED_COMMANDS" not in self.environment:
            allowed = content.allow_commands(self.data / "allowed_commands.json")
            self.environment["PARLAB_ALLOWED_COMMANDS"] = str(allowed)
        self._child(
            "daemon", [*python, "runners.node.daemon", "--node", _node_name(), "--state-dir", str(self.runner_dir)]
        )
        web = [
            "uvicorn",
            "parlab.asgi:application",
            "--host",
            "127.0.0.1",
            "--port",
            str(web_port),
            "--lifespan",
            "off",
        ]
        self._child("web", [*python, *web, "--no-access-log", "--timeout-graceful-shutdown", "3"])
        url = f"http://127.0.0.1:{web_port}"
        self._wait_until_ready(url)
        if is_fresh:
            self._report_from_outside(url, user)
        self._say(f"{url}  {user.username}  {password}")
        # After the address, because they are needed only for the sweep over three nodes.
        self._start_nodes()
        return url

    def _start_nodes(self) -> None:
        """Start three daemons: network namespaces if that is permitted, else addresses of loopback."""
        url = urlsplit(self.environment["REDIS_URL"])
        relay = ["--relay", str(url.port or 6379)] if url.hostname == "127.0.0.1" else []
        nodes = [sys.executable, "-m", "runners.links.nodes", "--count", str(len(self.node_dirs)), *relay]
        daemon = [sys.executable, "-m", "runners.node.daemon", "--pool", POOL, "--no-measure"]
        daemon += ["--node", "demo-{node}", "--address", "{address}"]
        self._child("nodes", [*nodes, "--", *daemon, "--state-dir", str(self.data / "nodes" / "{node}")])

    @property
    def runner_dir(self) -> Path:
        return self.data / "runner"

    @property
    def node_dirs(self) -> list[Path]:
        """Directories of the daemons beside that of this machine."""
        return [self.data / "nodes" / str(node) for node in range(3)]

    def _port(self, what: str, preferred: int, variable: str) -> int:
        port = free_port(preferred)
        if port != preferred:
            self._say(f"port {preferred} is in use, so the {what} uses port {port} (set {variable}= to choose another)")
        return port

    def _start_redis(self, preferred: int) -> None:
        """Start the embedded Redis unless REDIS_URL is set."""
        self.environment["PARLAB_NODE_KEY"] = settings.NODE_KEY.decode()
        if "REDIS_URL" in os.environ:
            return
        directory = self.data / "redis"
        directory.mkdir(exist_ok=True, mode=0o700)
        port = self._port("embedded Redis", preferred, "REDIS_PORT")
        password = secrets.token_urlsafe(24)
        url = f"redis://:{password}@127.0.0.1:{port}/0"
        # For commands in other terminals; settings.py reads it.
        settings.EMBEDDED_REDIS_FILE.touch(mode=0o600)
        settings.EMBEDDED_REDIS_FILE.write_text(url)
        self.environment["REDIS_URL"] = url
        self._child("redis", redis_command(port, directory, password))

    def _child(self, name: str, argv: list[str]) -> None:
        child = Child(name, argv, self.environment, self.data / "log" / f"{name}.log")
        child.start()
        self.children.append(child)

    def _report_from_outside(self, url: str, user: User) -> None:
        """Start the scripts whose runs come in from outside; nothing waits for them."""
        _, secret = token_create(user=user, name="scripts of the demo", by=user)
        home = self.data / "scripts"
        variables = {"PARLAB_URL": url, "PARLAB_TOKEN": secret, "PARLAB_HOME": str(home), "GIT_PYTHON_REFRESH": "quiet"}
        variables |= {"MLFLOW_TRACKING_URI": url, "MLFLOW_TRACKING_TOKEN": secret, "MLFLOW_DISABLE_TELEMETRY": "true"}
        argv = [sys.executable, "-m", "parlab.demo.reporting"]
        self.scripts = Child("scripts", argv, {**self.environment, **variables}, self.data / "log" / "scripts.log")
        self.scripts.start()

    def _wait_until_ready(self, url: str) -> None:
        """Wait until the web server responds and a heartbeat of the daemon has arrived."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not (_answers(f"{url}/login/") and Node.objects.online().filter(name=_node_name()).exists()):
            for child in self.children:
                child.keep_alive()
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {child.name}\n{child.tail(5)}" for child in self.children)
                raise ProcessFailed(f"not ready after {READY_TIMEOUT_S} s; the ends of the logs:\n{logs}")
            time.sleep(0.2)

    def _watch(self) -> None:
        while True:
            for child in self.children:
                if message := child.keep_alive():
                    self._say(message)
            time.sleep(0.5)

    def _stop(self) -> None:
        """End the processes that start runs, then the runs, then the other processes, so that no report is lost."""
        _ignore_signals()
        if self.scripts is not None:
            self.scripts.stop(timeout=3)
        names = {child.name: child for child in self.children}
        for name in ("web", "beat"):
            if name in names:
                names[name].stop()
        if "daemon" in names:
            self._end_runs()
            # The last reports reach the database if possible; otherwise they stay in the spool until the next start.
            deadline = time.monotonic() + 3
            directories = [self.runner_dir, *self.node_dirs]
            while any(run for each in directories for run in (each / "runs").glob("*")) and time.monotonic() < deadline:
                time.sleep(0.1)
            for name in ("nodes", "daemon"):
                if name in names:
                    names[name].stop()
            # Ends runs whose start message was already sent when beat ended.
            self._end_runs()
        for name in ("pictures", "worker", "redis"):
            if name in names:
                names[name].stop()

    def _end_runs(self) -> None:
        stop_all = [sys.executable, "-m", "runners.node.daemon", "stop-all", "--state-dir"]
        stoppers = []
        for directory in [self.runner_dir, *(each for each in self.node_dirs if any((each / "runs").glob("*")))]:
            stopper = Child("stop-all", [*stop_all, str(directory)], self.environment, self.data / "log" / "daemon.log")
            stopper.start()
            stoppers.append(stopper)
        for stopper in stoppers:
            stopper.process.wait()


_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _interrupt(*_: object) -> None:
    # A terminal or make often sends a second one, which must not disturb the orderly end.
    _ignore_signals()
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


def _node_name() -> str:
    return socket.gethostname()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _collect_static() -> None:
    """Collect static files if any has changed since the last time."""
    fingerprint = sorted(
        (str(path), path.stat().st_mtime_ns, path.stat().st_size)
        for path in (settings.BASE_DIR / "static").rglob("*")
        if path.is_file()
    )
    stamp = settings.STATIC_ROOT / ".collected"
    if stamp.exists() and stamp.read_text() == repr(fingerprint):
        return
    call_command("collectstatic", interactive=False, verbosity=0, stdout=StringIO())
    stamp.write_text(repr(fingerprint))
