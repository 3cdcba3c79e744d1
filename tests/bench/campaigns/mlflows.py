"""Unmodified MLflow clients against our server and against the newest MLflow server, in its own environment."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import psutil

from parlab.embedded import free_port
from tests.bench import ROOT
from tests.bench.client import running, server
from tests.bench.result import Result, Scale, Unavailable

_KEPT = ROOT / "build" / "bench-mlflow"
CLIENTS = 4
"""One script waits for one answer at a time and spends more time on a call than our server: several load a server."""
# For each line of its input "address size calls" creates a run and the batches, waits for a further line and logs them;
# prints begin, end and its processor time.
SCRIPT = """
import sys, time
import mlflow
from mlflow.entities import Metric
names = {f"train/metric_{number}": 1.2345678 * (number + 1) for number in range(10)}
for line in sys.stdin:
    address, size, calls = line.split()
    client, size, calls = mlflow.MlflowClient(address), int(size), int(calls)
    run, now, steps = client.create_run("0").info.run_id, int(time.time() * 1000), size // 10
    batches = [
        [Metric(name, value, now, call * steps + step) for step in range(steps) for name, value in names.items()]
        for call in range(calls)
    ]
    print("ready", flush=True)
    sys.stdin.readline()
    began, used = time.time(), time.process_time()
    for batch in batches:
        client.log_batch(run, metrics=batch)
    print(began, time.time(), time.process_time() - used, flush=True)
"""
CALLS = {1_000: 8, 10: 40}
"""Metrics per call (as many as MLflow allows; those of one step) -> calls of each client."""


class Target(NamedTuple):
    """A running server."""

    url: str
    process: psutil.Process


class Load(NamedTuple):
    """What a server did under the load of all clients."""

    points_per_s: float
    server_ms: float
    """Processor time per call."""
    client_ms: float


def log_batch_ratio(scale: Scale) -> Result:
    """Compare `log_batch` with 1,000 metrics a call, the most that MLflow allows."""
    return _compared(scale, 1_000)


def log_step_ratio(scale: Scale) -> Result:
    """Compare `log_batch` with the ten metrics of one step, which is what loggers of trainers send."""
    return _compared(scale, 10)


def _compared(scale: Scale, size: int) -> Result:
    if scale.is_quick:
        raise Unavailable("--quick installs nothing")
    version, own, others = _loads(scale)[size]
    value, against = (median(load.points_per_s for load in loads) for loads in (own, others))
    server_ms, other_ms, client_ms = (
        median(each)
        for each in zip(
            *((a.server_ms, b.server_ms, a.client_ms) for a, b in zip(own, others, strict=True)), strict=True
        )
    )
    text = (
        f"{value:,.0f} points/s, {against:,.0f} with mlflow server {version}; processor per call {server_ms:.1f} ms,"
        f" theirs {other_ms:.1f} ms ({other_ms / server_ms:.1f} x), client {client_ms:.1f} ms"
    )
    return Result.comparison(value / against, text, len(own))


@cache
def _loads(scale: Scale) -> Mapping[int, tuple[str, list[Load], list[Load]]]:
    """Load both servers with calls of both sizes, alternating; return by size the other's version and all loads."""
    loads: dict[int, tuple[str, list[Load], list[Load]]] = {}
    with tempfile.TemporaryDirectory(prefix="parlab-mlflow-") as directory, ExitStack() as stack:
        other, version = stack.enter_context(_mlflow_server(Path(directory)))
        url, token = stack.enter_context(server())
        this = Target(url, _process_at(url))
        clients = stack.enter_context(_clients(token))
        for size, calls in CALLS.items():
            loads[size] = version, [], []
            for _ in range(scale.repeats(3)):
                loads[size][1].append(_load(this, clients, size, calls))
                loads[size][2].append(_load(other, clients, size, max(calls // 4, 5)))
    return loads


@contextmanager
def _mlflow_server(directory: Path) -> Iterator[tuple[Target, str]]:
    """Start the newest MLflow server on SQLite with one worker, as ours; yields it and its version."""
    python = os.environ.get("PARLAB_MLFLOW_PYTHON") or _installed()
    code = "from importlib.metadata import version; print(version('mlflow'))"
    version = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    port = free_port()
    store = ["--backend-store-uri", f"sqlite:///{directory}/mlflow.db", "--artifacts-destination", str(directory)]
    command = [python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *store]
    url = f"http://127.0.0.1:{port}"
    # Without the processes for its scheduled evaluations, which would load the machine, too.
    with running(command, partial(_is_healthy, url), {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}):
        yield Target(url, _process_at(url)), version


def _installed() -> str:
    """Return the Python of an environment with MLflow, which is kept for later runs; raises `Unavailable`."""
    python = str(_KEPT / "bin" / "python")
    if not (_KEPT / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", _KEPT], check=True)
        # Most of its modules are never imported: without --no-compile pip compiles all of them.
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile", "mlflow"]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise Unavailable(f"mlflow cannot be installed: {reason[:200]}")
        (_KEPT / "complete").touch()
    return python


def _is_healthy(url: str) -> bool:
    try:
        with urlopen(f"{url}/health") as response:
            return bool(response.status == 200)
    except (URLError, OSError, http.client.HTTPException):
        return False


def _process_at(url: str) -> psutil.Process:
    """Return the process that this one has started and that has the port of an address in its command line."""
    port = url.rpartition(":")[2]
    return next(child for child in psutil.Process().children() if port in child.cmdline())


@contextmanager
def _clients(token: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the clients, which load one server or the other; MLflow's ignores the token."""
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "GIT_PYTHON_REFRESH": "quiet"}
    variables = {**os.environ, **quiet, "MLFLOW_TRACKING_TOKEN": token}
    command = [sys.executable, "-c", SCRIPT]
    clients = [
        subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(CLIENTS)
    ]
    try:
        yield clients
    finally:
        for client in clients:
            client.kill()
            client.communicate()


def _load(target: Target, clients: Sequence[subprocess.Popen[str]], size: int, calls: int) -> Load:
    _tell(clients, f"{target.url} {size} {calls}")
    if any(_line(client) != "ready" for client in clients):
        raise RuntimeError("a client has not started")
    used_s = _processor_s(target.process)
    _tell(clients, "go")
    rows = [tuple(map(float, _line(client).split())) for client in clients]
    used_s = _processor_s(target.process) - used_s
    elapsed_s = max(end for _, end, _ in rows) - min(began for began, _, _ in rows)
    count = CLIENTS * calls
    return Load(count * size / elapsed_s, 1e3 * used_s / count, 1e3 * sum(used for _, _, used in rows) / count)


def _tell(clients: Sequence[subprocess.Popen[str]], line: str) -> None:
    for client in clients:
        assert client.stdin is not None
        client.stdin.write(f"{line}\n")
        client.stdin.flush()


def _line(client: subprocess.Popen[str]) -> str:
    assert client.stdout is not None
    return client.stdout.readline().strip()


def _processor_s(process: psutil.Process) -> float:
    """Return the processor time of a process and of those that it has started."""
    return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))
