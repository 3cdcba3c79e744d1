"""The processes of a server and of nodes on this machine: Redis, workers, beat, web server, daemons."""

from __future__ import annotations

import fcntl
import http.client
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TextIO

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError

from parlab.embedded import free_port, redis_command
from parlab.lab.models import Node
from parlab.lab.services.access.groups import groups_refresh
from parlab.serve.processes import Child, ProcessFailed, end_together

READY_TIMEOUT_S = 300
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stack:
    """Starts the processes, keeps them running, and ends them in an order in which no report is lost."""

    def __init__(self, data: Path, say: Callable[[str], None]) -> None:
        self.data = data
        self.say = say
        self.environment = {**os.environ, "PARLAB_DATA_DIR": str(data), "PYTHONUNBUFFERED": "1"}
        self.children: list[Child] = []
        self.node_dirs: list[Path] = []
        """State directories of the daemons that this stack starts."""

    @contextmanager
    def running(self) -> Iterator[Callable[[str], None]]:
        """Keep others away from the data directory, and end the processes on leaving, by Ctrl-C as well.

        Yields a function that stores the address for others who try to start here.
        """
        for number in _ENDING:
            signal.signal(number, _interrupt)
        with (self.data / "server.lock").open("a+") as lock:
            self._take_lock(lock)
            (self.data / "log").mkdir(exist_ok=True)
            try:
                yield lambda url: _write(lock, f"{url} (process {os.getpid()})")
            except KeyboardInterrupt:
                self.say("stopping")
            except (ProcessFailed, OSError) as error:
                raise CommandError(str(error)) from error
            finally:
                _ignore_signals()
                self._stop()
                lock.truncate(0)

    def _take_lock(self, lock: TextIO) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise CommandError(
                f"already running with the data in {self.data}: {lock.read() or 'starting'}."
                " Stop it first, or set PARLAB_DATA_DIR to another directory."
            ) from None

    # --- start -------------------------------------------------------------------------------------------------------

    def start_redis(self, preferred: int) -> None:
        """Start the embedded Redis unless REDIS_URL is set. Raises OSError with the remedy where there is none."""
        if "REDIS_URL" in os.environ:
            return
        directory = self.data / "redis"
        directory.mkdir(exist_ok=True, mode=0o700)
        port = self.port("embedded Redis", preferred, "REDIS_PORT")
        password = secrets.token_urlsafe(24)
        url = f"redis://:{password}@127.0.0.1:{port}/0"
        command = redis_command(port, directory, password)
        # For commands in other terminals; settings.py reads it.
        settings.EMBEDDED_REDIS_FILE.touch(mode=0o600)
        settings.EMBEDDED_REDIS_FILE.write_text(url)
        self.environment["REDIS_URL"] = url
        self.start("redis", command)

    def prepare(self) -> None:
        """Create or upgrade the database, collect static files, and create the groups."""
        self.say("preparing the database and static files")
        call_command("migrate", verbosity=0)
        collect_static()
        groups_refresh()

    def start_server(self, host: str, port: int) -> str:
        """Start the workers, beat and the web server; return the address."""
        python = [sys.executable, "-m"]
        celery = [*python, "celery", "-A", "parlab.celery"]
        quiet = ["--without-gossip", "--without-mingle", "--loglevel=INFO"]
        self.start("worker", [*celery, "worker", "--pool=solo", "--queues=control,ingest,backlog", *quiet])
        drawing = ["worker", "--pool=solo", "--queues=pictures,notify", "--hostname=pictures@%h"]
        self.start("pictures", [*celery, *drawing, *quiet])
        self.start("beat", [*celery, "beat", "--pidfile="])
        web = ["uvicorn", "parlab.asgi:application", "--host", host, "--port", str(port), "--lifespan", "off"]
        web += ["--no-proxy-headers", "--http", "parlab.slow_requests:Protocol"]
        self.start("web", [*python, *web, "--no-access-log", "--timeout-graceful-shutdown", "3"])
        return f"http://{_shown_host(host)}:{port}"

    def start_daemon(self, state_dir: Path) -> None:
        """Start the daemon of this machine, which shares the key of the server unless a setting refuses it."""
        self.environment.setdefault("PARLAB_SHARED_NODE_KEY", "1")
        self.environment["PARLAB_NODE_KEY"] = settings.NODE_KEY.decode()
        self.node_dirs.append(state_dir)
        daemon = ["runners.node.daemon", "--node", node_name(), "--state-dir", str(state_dir)]
        self.start("daemon", [sys.executable, "-m", *daemon])

    def start(self, name: str, argv: list[str]) -> None:
        """Start a process that is restarted when it ends; its log is log/NAME.log."""
        child = Child(name, argv, self.environment, self.data / "log" / f"{name}.log")
        child.start()
        self.children.append(child)

    def port(self, what: str, preferred: int, variable: str) -> int:
        """Return the preferred port, or the next one that is free."""
        port = free_port(preferred)
        if port != preferred:
            self.say(f"port {preferred} is in use, so the {what} uses port {port} (set {variable}= to choose another)")
        return port

    # --- run ---------------------------------------------------------------------------------------------------------

    def wait_until_ready(self, host: str, port: int) -> None:
        """Wait until the web server responds and a heartbeat of the daemon, if there is one, has arrived."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        has_daemon = any(child.name == "daemon" for child in self.children)
        while not (
            _answers(host, port) and (not has_daemon or Node.objects.online().filter(name=node_name()).exists())
        ):
            for child in self.children:
                child.keep_alive()
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {child.name}\n{child.tail(5)}" for child in self.children)
                raise ProcessFailed(f"not ready after {READY_TIMEOUT_S} s; the ends of the logs:\n{logs}")
            time.sleep(0.2)

    def watch(self) -> None:
        """Keep the processes running until a signal ends this one."""
        while True:
            for child in self.children:
                if message := child.keep_alive():
                    self.say(message)
            time.sleep(0.5)

    # --- stop --------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """End the processes that start runs, then the runs, then the other processes, so that no report is lost."""
        self._end("web", "beat")
        if any(child.name == "daemon" for child in self.children):
            self._end_runs()
            # The last reports reach the database if possible; otherwise they stay in the spool until the next start.
            deadline = time.monotonic() + 3
            while self._has_runs() and time.monotonic() < deadline:
                time.sleep(0.1)
            self._end("nodes", "daemon")
            # Ends runs whose start message was already sent when beat ended.
            self._end_runs()
        self._end("pictures", "worker")
        self._end("redis")

    def _end(self, *names: str) -> None:
        end_together([child for child in self.children if child.name in names])

    def _has_runs(self) -> bool:
        return any(run for directory in self.node_dirs for run in (directory / "runs").glob("*"))

    def _end_runs(self) -> None:
        stop_all = [sys.executable, "-m", "runners.node.daemon", "stop-all", "--state-dir"]
        own, *others = self.node_dirs
        stoppers = []
        for directory in [own, *(each for each in others if any((each / "runs").glob("*")))]:
            stopper = Child("stop-all", [*stop_all, str(directory)], self.environment, self.data / "log" / "daemon.log")
            stopper.start()
            stoppers.append(stopper)
        for stopper in stoppers:
            stopper.process.wait()


def node_name() -> str:
    return socket.gethostname()


def collect_static() -> None:
    """Collect static files if any has changed since the last time."""
    fingerprint = sorted(
        (str(path), path.stat().st_mtime_ns, path.stat().st_size)
        for path in (settings.SHIPPED_DIR / "static").rglob("*")
        if path.is_file()
    )
    stamp = settings.STATIC_ROOT / ".collected"
    if stamp.exists() and stamp.read_text() == repr(fingerprint):
        return
    call_command("collectstatic", interactive=False, verbosity=0, stdout=StringIO())
    stamp.write_text(repr(fingerprint))


def _write(lock: TextIO, text: str) -> None:
    lock.truncate(0)
    lock.write(text)
    lock.flush()


def _interrupt(*_: object) -> None:
    # A terminal or make often sends a second one, which must not disturb the orderly end.
    _ignore_signals()
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


def _shown_host(host: str) -> str:
    """Return the host for an address: a name of the server if it listens on all of them."""
    if host in ("0.0.0.0", "::"):
        names = [name.lstrip(".") for name in settings.ALLOWED_HOSTS if name not in ("*", "127.0.0.1", "localhost")]
        return names[0] if names else socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _answers(host: str, port: int) -> bool:
    """Return whether the web server works: it may redirect to HTTPS or refuse the name of this host."""
    connection = http.client.HTTPConnection({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port, timeout=20)
    try:
        connection.request("GET", "/login/")
        return connection.getresponse().status < 500
    except (http.client.HTTPException, OSError):
        return False
    finally:
        connection.close()
