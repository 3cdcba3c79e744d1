"""A thousand nodes with 300 live runs, and queued runs for others: the real workers, beat and web process.

It runs on PostgreSQL, because no cluster of this size is kept in SQLite; PARLAB_BENCH_DATABASE=sqlite chooses that.
PARLAB_BENCH_WORKERS=2 measures with that many workers, PARLAB_BENCH_LIVE_S=600 for ten minutes, and
PARLAB_BENCH_QUEUED=700 with a queued run for each node that has no live one.
"""

from __future__ import annotations

import os
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from parlab.embedded import free_port
from parlab.lab.models import Attempt, Experiment, Member, MemberState, Node, Run
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.runs import config_launch
from parlab.series import store
from runners.wire.protocol import RunState
from tests.bench.campaigns.simulated_daemons import METRICS, POOL
from tests.bench.load import WORKER, Starter, beat, cpu_s
from tests.bench.nodes import broker
from tests.bench.result import Result, Scale
from tests.bench.running import on_postgres
from tests.patience import TRAINING_S, wait_for

_PRINTED = {"step_time_s", *(f"metric_{number}" for number in range(1, METRICS))}
NODES, RUNS, QUEUED, LIVE_S, QUEUED_STEPS = 1_000, 300, 200, 15, 3


def thousand_nodes_cores(scale: Scale) -> Result:
    """Measure the processor of the server while 1,000 nodes send heartbeats and 300 of them ship steps."""
    if "PARLAB_BENCH_DATABASE" not in os.environ:
        return on_postgres("thousand_nodes_cores", scale)
    nodes, count, waiting = (
        scale.of(NODES),
        scale.of(RUNS),
        scale.of(int(os.environ.get("PARLAB_BENCH_QUEUED", QUEUED))),
    )
    live_s = 3 if scale.is_quick else int(os.environ.get("PARLAB_BENCH_LIVE_S", str(LIVE_S)))
    with ExitStack() as held:
        server = Server(held, nodes)
        wait_for(lambda: Node.objects.online().filter(pool=POOL).count() == nodes, "all nodes are online", TRAINING_S)
        idle = server.cores(min(live_s, 5))
        experiment = launched("Live runs", count, iterations=live_s + (8 if scale.is_quick else 20))
        until(experiment, RunState.RUNNING, count)
        before, began, pages = server.cpu_s(), time.monotonic(), list[float]()
        while time.monotonic() < began + live_s:
            pages += server.pages(experiment)
            time.sleep(1)
        seconds = time.monotonic() - began
        busy = {name: (now - before[name]) / seconds for name, now in server.cpu_s().items()}
        began = time.monotonic()
        queued = launched("Queued runs", waiting, iterations=QUEUED_STEPS)
        sent = Member.objects.filter(attempt__run__experiment=queued).exclude(state=MemberState.DISPATCHED)
        wait_for(lambda: sent.count() == waiting, "all queued runs have started", TRAINING_S)
        started_s = time.monotonic() - began
        for each in (queued, experiment):
            until(each, RunState.FINISHED, each.runs.count())
            check(each)
    cores = sum(share for name, share in busy.items() if name not in ("redis", "daemons"))
    parts = ", ".join(f"{name} {share:.2f}" for name, share in busy.items())
    against = (
        f"{parts}; without runs {idle:.2f}; {waiting} queued runs prepared after"
        f" {started_s:.1f} s; pages {np.median(pages):.2f} s, worst {max(pages):.2f} s"
    )
    return Result(cores, against, 1)


class Server:
    """Workers, beat and web process of the server, Redis, and a process that speaks for all daemons."""

    def __init__(self, held: ExitStack, nodes: int) -> None:
        directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="parlab-thousand-")))
        url, _ = held.enter_context(broker(directory))
        self._starter = Starter(held, directory, url)
        self.processes: dict[str, list[psutil.Process]] = {}
        workers = int(os.environ.get("PARLAB_BENCH_WORKERS", "1"))
        for number in range(workers):
            self._start("workers", [*WORKER, f"--hostname=bench{number}@%h"])
        self._start("beat", beat(directory))
        call_command("collectstatic", interactive=False, verbosity=0)
        self.host = f"127.0.0.1:{(port := free_port())}"
        web = ["uvicorn", "parlab.asgi:application", "--port", str(port), "--lifespan=off", "--no-access-log"]
        self._start("web", ["-m", *web])
        self._start("daemons", ["-m", "tests.bench.campaigns.simulated_daemons", url, str(nodes), "1"])
        self.processes["redis"] = [psutil.Process(_listening(url))]
        client = Client()
        client.force_login(User.objects.get_or_create(username="bench", defaults={"is_superuser": True})[0])
        self.cookie = f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"

    def _start(self, name: str, command: Sequence[str]) -> None:
        self.processes.setdefault(name, []).append(self._starter(command))

    def cpu_s(self) -> dict[str, float]:
        """Return the processor seconds of each part so far."""
        return {name: sum(map(cpu_s, parts)) for name, parts in self.processes.items()}

    def cores(self, seconds: float) -> float:
        """Return the share of a core that the server takes in the next seconds."""
        before = self.cpu_s()
        time.sleep(seconds)
        now = self.cpu_s()
        return sum(now[name] - before[name] for name in ("workers", "beat", "web")) / seconds

    def pages(self, experiment: Experiment) -> list[float]:
        """Return how long a browser waits for Home, the list of nodes, an experiment and one of its runs (s)."""
        run = experiment.runs.order_by("?").first()
        assert run is not None
        return [self._page(path) for path in ("/", "/nodes/", experiment.get_absolute_url(), run.get_absolute_url())]

    def _page(self, path: str) -> float:
        request = urllib.request.Request(f"http://{self.host}{path}", headers={"Cookie": self.cookie})
        began = time.perf_counter()
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()
        return time.perf_counter() - began


def _listening(url: str) -> int:
    return int(redis.Redis.from_url(url).info("server")["process_id"])


def launched(name: str, count: int, *, iterations: int) -> Experiment:
    """Queue runs on one node each; beat dispatches them."""
    user = User.objects.get(username="bench")
    experiment = experiment_create(name=name, owner=user)
    data: dict[str, Any] = {
        "train": {"iterations": iterations},
        "parallel": {"engine": "command"},
        "command": {"argv": ["/bin/sleep", "60"]},
        "launcher": {"kind": "plain"},
        "cluster": {"pool": POOL, "device": "cpu"},
    }
    config = config_save(experiment=experiment, data=data, sweep={"train.seed": list(range(count))}, user=user)
    config_launch(config=config, user=user)
    return experiment


def until(experiment: Experiment, state: RunState, count: int) -> None:
    runs = Run.objects.filter(experiment=experiment)
    wait_for(lambda: runs.filter(state=state).count() == count, f"{count} runs are {state}", TRAINING_S)


def check(experiment: Experiment) -> None:
    """Raise RuntimeError unless every point of every run is stored once."""
    for attempt in Attempt.objects.filter(run__experiment=experiment).select_related("run"):
        expected = attempt.run.resolved["train"]["iterations"] * METRICS
        stored = sum(info.points for info in store.metrics(attempt.pk) if info.metric in _PRINTED)
        if stored != expected:
            raise RuntimeError(f"{stored} of {expected} points of {attempt} are stored")
