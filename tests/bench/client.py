"""The client: what `log` costs a training, points over HTTP, the lag of followed files and of many scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from django.contrib.auth import get_user_model

from parlab import init
from parlab.client.command.output import Followed, follow
from parlab.client.http import Connection, Unreachable
from parlab.client.settings import Settings
from parlab.embedded import free_port
from parlab.lab.models import Run, TrackedRun
from parlab.lab.services.access.tokens import token_create
from parlab.series import store
from parlab.series.columns import unpack
from parlab.series.models import SeriesChunk
from tests.bench.result import Result, Scale

METRICS = {f"train/metric_{number}": 1.2345678 * (number + 1) for number in range(10)}
LINE = (
    " iteration {n:8d}/   10000 | consumed samples: {n:12d} | elapsed time per iteration (ms): 250.0 |"
    " lm loss: 5.0E+00 |\n"
)
# Ten metrics ten times a second, until the file of the argument exists.
SCRIPT = """
import os, sys, time
from parlab import init
run = init("bench scripts", run_id=sys.argv[1], telemetry=False)
step = 0
while not os.path.exists(sys.argv[2]):
    run.log({f"metric_{n}": float(step + n) for n in range(10)}, step=step)
    step += 1
    time.sleep(0.1)
run.finish()
"""


def log_us(scale: Scale) -> Result:
    """Measure `log` with ten metrics without a server, against json.dumps and a flushed write per step."""
    steps, repeats = scale.of(20_000), scale.repeats(5)
    values, others = [], []
    with _home(PARLAB_OFFLINE="1") as directory:
        for _ in range(repeats):
            values.append(_log_median(steps))
            others.append(_write_median(directory / "lines", steps))
    value, other = median(values), median(others)
    return Result(value, f"{other:.3g} us for json.dumps and a flushed write", repeats, other / value)


def _log_median(steps: int) -> float:
    run = init("bench", telemetry=False)
    try:
        return _median_us(lambda step: run.log(METRICS, step=step), steps)
    finally:
        run.finish()


def _write_median(path: Path, steps: int) -> float:
    with path.open("w") as file:

        def write(step: int) -> None:
            file.write(json.dumps({"step": step, "t": time.time(), **METRICS}) + "\n")
            file.flush()

        return _median_us(write, steps)


def points_per_s(scale: Scale) -> Result:
    """Measure points from `log` to the database over HTTP, one process; against `log` without a server."""
    steps, repeats = scale.of(100_000), scale.repeats(3)
    values, others = [], []
    with _home(), server() as (url, token):
        for _ in range(repeats):
            began = time.perf_counter()
            run = init("bench client", url=url, token=token, telemetry=False)
            for step in range(steps):
                run.log(METRICS, step=step)
            logged_s = time.perf_counter() - began
            if not run.finish(timeout_s=300):
                raise RuntimeError("the server has not stored everything")
            values.append(steps * len(METRICS) / (time.perf_counter() - began))
            others.append(steps * len(METRICS) / logged_s)
        points = sum(info.points for info in store.metrics(_attempt(run.id)))
        if points != steps * len(METRICS):
            raise RuntimeError(f"{points} points are stored")
    value, other = median(values), median(others)
    return Result(value, f"{other:,.0f} until the last log returned", repeats, value / other)


def follow_lag_ms(scale: Scale) -> Result:
    """Measure the time from a line in a followed file to its point in the database, five lines a second."""
    lines = max(3, scale.of(10))
    lags = []
    with _home() as directory, server() as (url, token):
        path = directory / "train.log"
        path.write_text("".join(LINE.format(n=n) for n in range(1, 21)))
        stop = threading.Event()
        followed = Followed(path, Settings(url, token), experiment="bench follow", name="", run_id=None)
        thread = threading.Thread(target=follow, args=(followed,), kwargs={"is_over": lambda _: stop.is_set()})
        thread.start()
        try:
            _wait_for_step(followed, 20)
            for n in range(21, 21 + lines):
                time.sleep(0.2)
                written = time.perf_counter()
                with path.open("a") as file:
                    file.write(LINE.format(n=n))
                _wait_for_step(followed, n)
                lags.append((time.perf_counter() - written) * 1e3)
        finally:
            stop.set()
            thread.join()
    value = median(lags)
    return Result(value, f"worst {max(lags):,.0f} ms", lines)


def scripts_lag_s(scale: Scale) -> Result:
    """Measure the oldest of the newest points of 100 scripts that log 100 points a second each."""
    count, seconds = (5, 3) if scale.is_quick else (100, 10)
    lags = []
    with _home() as directory, server() as (url, token):
        stop = directory / "stop"
        variables = {**os.environ, "PARLAB_URL": url, "PARLAB_TOKEN": token}
        ids = [f"script-{time.time_ns()}-{number}" for number in range(count)]
        scripts = [subprocess.Popen([sys.executable, "-c", SCRIPT, run, str(stop)], env=variables) for run in ids]
        try:
            _wait_until(lambda: len(_newest(ids)) == count, "all scripts have reported")
            time.sleep(3)  # they have all just started
            for _ in range(seconds):
                time.sleep(1)
                lags.append(time.time() - min(_newest(ids).values()))
        finally:
            stop.touch()
            for script in scripts:
                script.wait()
    value = max(lags)
    return Result(value, f"median of the worst {median(lags):.2g} s", len(lags))


def _newest(ids: list[str]) -> dict[str, float]:
    """Return the time of the newest stored point of each run."""
    attempts = dict(TrackedRun.objects.filter(uuid__in=ids).values_list("run__attempts", "uuid"))
    chunks = SeriesChunk.objects.filter(attempt_id__in=attempts, metric="metric_0", is_last=True)
    return {attempts[chunk.attempt_id]: float(unpack(chunk.times)[-1]) for chunk in chunks}


def _wait_for_step(followed: Followed, step: int) -> None:
    def is_stored() -> bool:
        if not followed.run:
            return False
        return bool(store.read(_attempt(followed.run["id"]), "loss", rank=0, first_step=step).steps.size)

    _wait_until(is_stored, f"step {step}")


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within 300 s: {what}")
        time.sleep(0.01)


def _attempt(run_id: str) -> int:
    run: Run = TrackedRun.objects.select_related("run").get(uuid=run_id).run
    return run.current_attempt().pk


def _median_us(work: Callable[[int], object], steps: int) -> float:
    times = []
    for step in range(steps):
        began = time.perf_counter_ns()
        work(step)
        times.append(time.perf_counter_ns() - began)
    return median(times) / 1e3


@contextmanager
def _home(**variables: str) -> Iterator[Path]:
    """Give the client a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="parlab-client-") as directory:
        os.environ |= {"PARLAB_HOME": directory, **variables}
        try:
            yield Path(directory)
        finally:
            for name in ("PARLAB_HOME", *variables):
                del os.environ[name]


@contextmanager
def server() -> Iterator[tuple[str, str]]:
    """Start a server in a process of its own on the benchmarks' database; yields address and token."""
    user, _ = get_user_model().objects.get_or_create(username="bench client", is_superuser=True)
    token, secret = token_create(user=user, name=f"bench {time.time()}", by=user)
    port = free_port()
    connection = Connection(f"http://127.0.0.1:{port}", secret)
    arguments = ["--port", str(port), "--log-level", "warning"]
    with running([sys.executable, "-m", "uvicorn", "parlab.asgi:application", *arguments], partial(is_up, connection)):
        yield connection.url, secret
    token.delete()


@contextmanager
def running(
    command: list[str], is_up: Callable[[], bool], variables: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a server, without its log of requests, until the block ends; the block begins once it answers."""
    process = subprocess.Popen(command, env={**os.environ, **(variables or {})}, stdout=subprocess.DEVNULL)
    try:
        _wait_until(lambda: process.poll() is not None or is_up(), f"{command[0]} answers")
        if process.poll() is not None:
            raise RuntimeError(f"{' '.join(command)} has ended with {process.returncode}")
        yield
    finally:
        process.terminate()
        process.wait()


def is_up(connection: Connection) -> bool:
    try:
        connection.json("GET", "/api/experiments/")
    except Unreachable:
        return False
    return True
