"""`parlab run -- COMMAND` and `parlab follow FILE`: output goes to the server as it comes, where readers read it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

from parlab.client import environment, journal, launch
from parlab.client.beats import Beats
from parlab.client.http import Connection, Refused, Unreachable
from parlab.client.run import Run
from parlab.client.settings import Settings
from parlab.client.shipping import BATCH_BYTES, RETRY_MAX_S
from parlab.client.telemetry import is_wanted, of_node

OOM_EXIT_CODE = 77
POLL_S = 0.1
LONGEST_LINE = 64 << 10
_TAIL_BYTES = 64 << 10
_OOM = re.compile(rb"OutOfMemoryError|CUDA out of memory|HIP out of memory")
_TRACEBACK = b"Traceback (most recent call last):"


def run_command(argv: list[str], login: Settings, *, experiment: str, name: str, run_id: str | None) -> int:
    """Run a command, pass its output on, report it as a run, and return its exit code (128 + n for signal n)."""
    run_id = run_id or os.environ.get("PARLAB_RUN_ID") or launch.job_id(os.environ) or uuid.uuid4().hex
    run = Run(_opening(login, argv, experiment=experiment, name=name, run_id=run_id), token=login.token)
    if is_wanted(os.environ, None):
        run.watch(of_node(run.append_later, os.environ, run.describe))
    # Scripts inside leave telemetry to the wrapper, which samples the whole node.
    variables = {**os.environ, "PARLAB_RUN_ID": run_id, "PARLAB_EXPERIMENT": experiment, "PARLAB_TELEMETRY": "0"}
    variables.update({"PARLAB_URL": login.url, "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1")})
    if login.token:
        variables["PARLAB_TOKEN"] = login.token
    try:
        process = subprocess.Popen(argv, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    except OSError as error:
        sys.stderr.write(f"parlab: {argv[0]}: {error.strerror}\n")
        run.finish(exit_code=127, reason=f"{argv[0]} cannot be started: {error.strerror}")
        return 127
    # The terminal sends an interrupt to the command as well; the run ends when the command does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda received, _frame: process.send_signal(received))
    tail = _pass_on(process, run)
    code = process.wait()
    run.finish(**ending(code, tail))
    return code if code >= 0 else 128 - code


def _opening(login: Settings, argv: list[str], *, experiment: str, name: str, run_id: str) -> dict[str, Any]:
    return {
        "url": login.url,
        "run_id": run_id,
        "experiment": experiment,
        "name": name or " ".join(argv)[:300],
        "kind": "output",
        "rank": launch.node_rank(os.environ),
        "started_at": time.time(),
        **environment.description(),
        "command": argv[:200],
    }


def _pass_on(process: subprocess.Popen[bytes], run: Run) -> bytes:
    """Copy both pipes of a command to ours and to the run; return the end of its output."""
    pipes: dict[IO[bytes], tuple[Lines, IO[bytes]]] = {}
    with selectors.DefaultSelector() as selector:
        for pipe, target in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)):
            assert pipe is not None
            pipes[pipe] = (Lines(), target)
            selector.register(pipe, selectors.EVENT_READ)
        tail = b""
        while selector.get_map():
            for key, _ in selector.select():
                lines, target = pipes[key.fileobj]  # type: ignore[index]
                data = os.read(key.fd, 1 << 16)
                _write(target, data)
                tail = (tail + data)[-_TAIL_BYTES:]
                if not data:
                    selector.unregister(key.fileobj)
                whole = lines.feed(data, is_last=not data)
                if whole:
                    run.append(whole)
    return tail


def _write(target: IO[bytes], data: bytes) -> None:
    try:
        target.write(data)
        target.flush()
    except OSError:
        pass  # the reader of our output has ended; the run continues


class Lines:
    """Cuts a stream into whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes, *, is_last: bool = False) -> bytes:
        """Return the lines that are complete; a line that grows without end is cut at a carriage return."""
        self._rest += data
        end = len(self._rest) if is_last else self._rest.rfind(b"\n") + 1
        if not end and len(self._rest) > LONGEST_LINE:
            end = self._rest.rfind(b"\r") + 1 or len(self._rest)
        lines, self._rest = self._rest[:end], self._rest[end:]
        return lines if not lines or lines.endswith(b"\n") else lines + b"\n"


def ending(code: int, tail: bytes) -> dict[str, Any]:
    """Return how a run ended, from the exit code of its command and the end of its output."""
    if code == 0:
        return {"exit_code": 0}
    at = tail.rfind(_TRACEBACK)
    trace = tail[at:].decode("utf-8", "replace") if at >= 0 else ""
    if code == OOM_EXIT_CODE or _OOM.search(tail):
        return {"state": "oom", "exit_code": code, "reason": "out of memory", "trace": trace}
    reason = f"exit code {code}" if code > 0 else f"killed by signal {signal.Signals(-code).name}"
    error = next((line for line in trace.splitlines()[1:] if line and not line.startswith((" ", "\t"))), "")
    return {"exit_code": code, "reason": f"{reason}: {error}"[:1000] if error else reason, "trace": trace}


class Followed:
    """A growing file as a stream: its bytes are the spool, so a position is an offset in the file."""

    def __init__(self, path: Path, login: Settings, *, experiment: str, name: str, run_id: str | None) -> None:
        self._path = path
        self._connection = Connection(login.url, login.token)
        self._run_id = run_id or os.environ.get("PARLAB_RUN_ID") or launch.job_id(os.environ)
        self._opening = _opening(login, [], experiment=experiment, name=name or path.name, run_id=self._run_id or "")
        self._opening["command"] = []
        self._address = ""
        self.position = 0
        self.run: dict[str, Any] = {}

    def open(self) -> bool:
        """Open the stream of the file, where it was left; false while the file has no line yet."""
        first = _first_line(self._path)
        if first is None:
            return False
        place = f"{socket.gethostname()}\0{self._path.resolve()}\0".encode()
        for version in range(1000):
            key = hashlib.sha256(place + first + str(version).encode()).hexdigest()[:32]
            self._address = f"/api/runs/{self._run_id or key}/streams/{key}/"
            body = {**self._opening, "run_id": self._run_id or key, "resume": True, "sent_at": time.time()}
            answer = self._connection.json("PUT", self._address, body)
            self.run, self.position = answer["run"], int(answer["committed"])
            if self.position <= self._path.stat().st_size:
                return True
        raise ValueError(f"file {self._path} was replaced too often; follow it under another run ID")

    def send(self) -> bool:
        """Send the whole lines that are new; return whether there were any."""
        with self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self.position:
                self.open()  # replaced by a shorter file: another run
            file.seek(self.position)
            data = file.read(BATCH_BYTES)
        end = data.rfind(b"\n") + 1
        if not end and len(data) > LONGEST_LINE:
            end = len(data)
        if end:
            self._post(data[:end], [])
        return bool(end)

    def beat(self) -> None:
        """Show that the file is being followed."""
        self._post(b"", [])

    def finish(self, end: dict[str, Any]) -> None:
        """Send what is left and how the run ended."""
        while self.send():
            pass
        with self._path.open("rb") as file:
            file.seek(self.position)
            self._post(file.read(BATCH_BYTES), [{"kind": "end", "at": time.time(), **end}])

    def _post(self, output: bytes, reports: list[dict[str, Any]]) -> None:
        body = b"".join(
            journal.encode(journal.Kind.OUTPUT, output[at : at + BATCH_BYTES])
            for at in range(0, len(output), BATCH_BYTES)
        )
        body += b"".join(journal.encode(journal.Kind.REPORT, json.dumps(report).encode()) for report in reports)
        following = self.position + len(output)
        answer, _ = self._connection.request("POST", f"{self._address}?position={self.position}&next={following}", body)
        self.position = int(json.loads(answer)["committed"])


class Growing(Protocol):
    """What `follow` follows."""

    @property
    def run(self) -> dict[str, Any]: ...
    def open(self) -> bool: ...
    def send(self) -> bool: ...
    def beat(self) -> None: ...
    def finish(self, end: dict[str, Any]) -> None: ...


def follow(followed: Growing, *, is_over: Callable[[float], bool]) -> dict[str, Any]:
    """Send what a file gets until it is over (called with the seconds since it last grew); returns the run.

    A server that is away is waited for: the file keeps what it gets. Raises Refused or ValueError.
    """
    grew_at, failures = time.monotonic(), 0
    is_open, beats = False, Beats()
    while True:
        pause = POLL_S
        over = is_over(time.monotonic() - grew_at)
        try:
            if not is_open:
                is_open = followed.open()
            while is_open and followed.send():
                grew_at = time.monotonic()
                beats.data_sent()
            if is_open and over:
                followed.finish({"state": "finished", "exit_code": None})
                return followed.run
            if over:
                return {}
            if is_open and beats.is_due:
                followed.beat()
                beats.beat_sent()
            failures = 0
        except (Unreachable, FileNotFoundError) as error:
            if not failures:
                sys.stderr.write(f"parlab: {error}; trying again\n")
            failures += 1
            if over and failures > 3:
                raise
            pause = min(2.0**failures, RETRY_MAX_S)
        except Refused as error:
            if error.status != 409:
                raise
            sys.stderr.write(f"parlab: {error}\n")
            pause = 10.0
        time.sleep(pause)


def _first_line(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            line = file.readline(4096)
    except FileNotFoundError:
        return None
    return line if line.endswith(b"\n") or len(line) == 4096 else None
