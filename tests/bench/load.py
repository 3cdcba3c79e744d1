"""Load from end to end: the spool of a real daemon -> Redis -> a real worker -> the database.

PARLAB_BENCH_DATABASE=postgres measures on PostgreSQL, PARLAB_BENCH_WORKERS=2 with that many workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from django.conf import settings

from parlab.lab.models import Attempt, Member, Node
from parlab.series import store
from parlab.series.columns import unpack
from parlab.series.models import SeriesChunk
from runners.node.rundir import RunDir, StateDir, lock
from runners.supervisor.spool import SpoolWriter
from runners.wire.protocol import Report
from tests.bench import ROOT
from tests.bench.database import new_attempt
from tests.bench.ingest import training
from tests.bench.nodes import broker
from tests.bench.result import Result, Scale
from tests.patience import TRAINING_S, wait_for

NODE = "bench"
RUNS, LIVE_S = 100, 15
STEPS_PER_S, METRICS = 10, 10
_RECORD_BYTES = 32 << 10
WORKER = (
    "-m",
    "celery",
    "-A",
    "parlab.celery",
    "worker",
    "--pool=solo",
    "--queues=control,ingest,backlog",
    "--without-gossip",
    "--without-mingle",
    "--loglevel=WARNING",
)


@dataclass
class Stack:
    """The processes that carry output from spools to the database, and the state directory of the daemon."""

    state: StateDir
    directory: Path
    workers: list[psutil.Process]
    daemon: psutil.Process

    def cpu_s(self) -> tuple[float, float]:
        """Return the processor seconds of workers and daemon so far."""
        return sum(map(cpu_s, self.workers)), cpu_s(self.daemon)

    def new_run(self) -> tuple[Attempt, RunDir]:
        """Return a run that the daemon holds once `put_in_place` has moved it there."""
        attempt = new_attempt()
        return attempt, self.state.prepare(attempt.run_id, attempt.number)


def cpu_s(process: psutil.Process) -> float:
    """Return the processor seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def beat(directory: Path) -> list[str]:
    """Return Python's arguments to start Celery's beat, which keeps its schedule in a directory."""
    return ["-m", "celery", "-A", "parlab.celery", "beat", "--pidfile=", f"-s{directory}/beat"]


class Starter:
    """Starts Python processes of the server or a node, which end with `held`."""

    def __init__(self, held: ExitStack, directory: Path, url: str) -> None:
        key = settings.NODE_KEY.decode()
        self._environment = {**os.environ, "REDIS_URL": url, "PARLAB_NODE_KEY": key, "PYTHONPATH": str(ROOT)}
        self._environment["PARLAB_SHARED_NODE_KEY"] = "1"
        self._held, self._log = held, held.enter_context((directory / "log").open("wb"))

    def __call__(self, command: Sequence[str]) -> psutil.Process:
        """Start Python with these arguments."""
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=self._environment, stdout=self._log, stderr=self._log
        )
        self._held.callback(process.wait)
        self._held.callback(process.terminate)
        return psutil.Process(process.pid)


@contextmanager
def stack() -> Iterator[Stack]:
    """Start Redis, workers and a daemon."""
    count = int(os.environ.get("PARLAB_BENCH_WORKERS", "1"))
    with (
        tempfile.TemporaryDirectory(prefix="parlab-load-") as name,
        broker(Path(name)) as (url, _),
        ExitStack() as held,
    ):
        directory = Path(name)
        start = Starter(held, directory, url)
        workers = [start([*WORKER, f"--hostname=bench{n}@%h"]) for n in range(count)]
        state = StateDir(directory / "state")
        daemon = ["-m", "runners.node.daemon", "--node", NODE, "--no-measure", "--state-dir", str(state.root)]
        running = Stack(state, directory, workers, start(daemon))
        Node.objects.filter(name=NODE).update(last_heartbeat_at=None)
        wait_for(lambda: Node.objects.online().filter(name=NODE).exists(), "the daemon is known to the server")
        yield running


def pipeline_points_per_s(scale: Scale) -> Result:
    """Measure three trainings whose output waits in spools, until all of it is in the database."""
    output = training(steps=scale.of(20_000))
    repeats, rates, busy = scale.repeats(3), list[float](), list[list[float]]()
    with stack() as running:
        for _ in range(repeats):
            attempts = [_spooled(running, output) for _ in range(3)]
            before, began = running.cpu_s(), time.perf_counter()
            for _, draft in attempts:
                running.state.put_in_place(draft)
            ids = [attempt.pk for attempt, _ in attempts]
            wait_for(partial(_have_ended, ids), "all output is stored", TRAINING_S)
            seconds = time.perf_counter() - began
            points = sum(info.points for pk in ids for info in store.metrics(pk))
            rates.append(points / seconds)
            busy.append([(now - then) / seconds for now, then in zip(running.cpu_s(), before, strict=True)])
    value = float(np.median(rates))
    worker, daemon = np.median(busy, axis=0)
    against = f"worker {worker:.2f}, daemon {daemon:.2f} cores, {value / worker:,.0f} per second of the worker"
    return Result(value, against, repeats)


def _have_ended(attempts: list[int]) -> bool:
    return Member.objects.filter(attempt__in=attempts, state="finished").count() == len(attempts)


def _spooled(running: Stack, output: bytes) -> tuple[Attempt, RunDir]:
    """Return a run with its whole output and end in a spool that the daemon does not see yet."""
    attempt, draft = running.new_run()
    with SpoolWriter(draft.spool) as writer:
        begin = 0
        while begin < len(output):
            end = output.rfind(b"\n", begin, begin + _RECORD_BYTES) + 1
            writer.append_output(output[begin:end], time.time())
            begin = end
        writer.append_report(Report(state="finished", at=time.time(), exit_code=0))
    return attempt, draft


def live_lag_p99_s(scale: Scale) -> Result:
    """Measure how old the newest stored point of 100 runs is that print 100 points a second each."""
    count, seconds = (5, 3) if scale.is_quick else (RUNS, int(os.environ.get("PARLAB_BENCH_LIVE_S", str(LIVE_S))))
    with stack() as running, ExitStack() as held:
        writers: dict[int, SpoolWriter] = {}
        for _ in range(count):
            attempt, draft = running.new_run()
            descriptor = lock(draft.lock)  # a supervisor lives
            assert descriptor is not None
            held.callback(os.close, descriptor)
            writers[attempt.pk] = held.enter_context(SpoolWriter(draft.spool))
            run = running.state.put_in_place(draft)
            writers[attempt.pk].directory = run.spool
        lags, before, began = [], running.cpu_s(), time.time()
        looked = began + 5  # all runs start at once, which no cluster does
        step = 0
        while time.time() < began + 5 + seconds:
            step += 1
            for number, writer in enumerate(writers.values()):
                writer.append_output(_event(step, number), time.time())
            if time.time() >= looked:
                looked += 1
                lags += [time.time() - at for at in _newest(list(writers)).values()]
            time.sleep(max(0.0, began + step / STEPS_PER_S - time.time()))
        took_s = time.time() - began
        busy = [(now - then) / took_s for now, then in zip(running.cpu_s(), before, strict=True)]
        wait_for(lambda: _stored(writers) >= count * step * METRICS, "all points are stored", TRAINING_S)
        for pk in writers:
            if (stored := _stored([pk])) != step * METRICS:
                raise RuntimeError(f"{stored} of {step * METRICS} points of attempt {pk} are stored")
    value = float(np.quantile(lags, 0.99))
    against = f"median {np.median(lags):.2f}, worst {max(lags):.2f} s; worker {busy[0]:.2f}, daemon {busy[1]:.2f} cores"
    return Result(value, against, len(lags))


def _stored(attempts: Iterable[int]) -> int:
    return sum(info.points for pk in attempts for info in store.metrics(pk))


def _event(step: int, number: int) -> bytes:
    values = ",".join(f'"metric_{metric}":{number + step / (metric + 7):.6f}' for metric in range(METRICS))
    return f'{{"parlab":1,"t":{time.time():.3f},"rank":0,"event":"step","step":{step},{values}}}\n'.encode()


def _newest(attempts: list[int]) -> dict[int, float]:
    """Return the time of the newest stored point of each run; of a run without points, that of the epoch."""
    chunks = SeriesChunk.objects.filter(attempt_id__in=attempts, metric="metric_0", is_last=True)
    times = {chunk.attempt_id: float(unpack(chunk.times)[-1]) for chunk in chunks.only("attempt_id", "times")}
    return {attempt: times.get(attempt, 0.0) for attempt in attempts}
