"""Runs over several nodes: daemons in network namespaces (as root, else on loopback), the server's own code."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, cast

import redis
from django.conf import settings
from django.contrib.auth.models import User

from parlab.celery import app
from parlab.demo.content import allow_commands
from parlab.demo.sweeps import SMALL_GPT
from parlab.embedded import free_port, redis_command
from parlab.fleet import services
from parlab.lab.models import Attempt, Experiment, Node
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from runners.wire.protocol import Batch, RunState
from tests.bench import ROOT
from tests.bench.result import Result, Scale
from tests.fleet.workers import Workers
from tests.patience import TRAINING_S, wait_for

POOL = "bench-nodes"
_EVENT = b'{"parlab":'
PORT = 29_511
"""Port of the rendezvous of torchrun by hand; in a new namespace every port is free."""


class Nodes:
    """Several daemons behind the server's workers in this process."""

    def __init__(self, workers: "SeeingWorkers", url: str, port: int) -> None:
        self.workers, self.url, self.port = workers, url, port

    def run(self, data: dict[str, Any]) -> "Measured":
        """Launch a run and wait until it has ended; raises RuntimeError if it has not finished."""
        user, _ = User.objects.get_or_create(username="bench", defaults={"is_superuser": True})
        name = f"Over nodes {Experiment.objects.count()}"
        experiment = experiment_create(name=name, owner=user)
        config = config_save(experiment=experiment, data=data, sweep={}, user=user)
        self.workers.events.clear()
        began = time.time()
        (run,) = services.launch(config=config, user=user).created
        attempt = run.current_attempt()

        def has_ended() -> bool:
            services.dispatch()  # as beat does
            attempt.refresh_from_db()
            return RunState(attempt.state).is_final

        self.workers.until(has_ended, "the run ends", TRAINING_S)
        if attempt.state != RunState.FINISHED:
            raise RuntimeError(f"the run over nodes has ended as {attempt.state}: {attempt.reason}")
        return Measured(attempt, began, list(self.workers.events))


class Measured:
    """A run that has finished, with its events."""

    def __init__(self, attempt: Attempt, began: float, events: list[dict[str, Any]]) -> None:
        self.attempt, self.began = attempt, began
        self.steps = [event for event in events if event["event"] == "step"]

    def first_step_s(self) -> float:
        """Return the seconds from the launch until the slowest rank has done its first step."""
        return first_step(self.steps) - self.began

    def step_times_s(self) -> list[float]:
        """Return the time of each step but the first, of the slowest rank."""
        slowest: dict[int, float] = {}
        for event in self.steps:
            slowest[event["step"]] = max(event["step_time_s"], slowest.get(event["step"], 0.0))
        return [seconds for step, seconds in slowest.items() if step > 1]


def first_step(steps: list[dict[str, Any]]) -> float:
    """Return when the slowest rank printed its first step, as Unix time."""
    return max(float(event["t"]) for event in steps if event["step"] == 1)


def events_of(output: bytes) -> list[dict[str, Any]]:
    """Return the events of an output."""
    return [json.loads(line) for line in output.splitlines() if line.startswith(_EVENT)]


class SeeingWorkers(Workers):
    """Workers that keep the events of a run."""

    def __init__(self, url: str) -> None:
        self.events: list[dict[str, Any]] = []
        super().__init__(url, self._keep)

    def _keep(self, batch: Batch) -> None:
        self.events += events_of(batch.output)


@contextmanager
def broker(directory: Path) -> Iterator[tuple[str, int]]:
    """Start a Redis, and let the server use it; yields its URL and port."""
    port = free_port()
    process = subprocess.Popen(redis_command(port, directory), stdout=subprocess.DEVNULL)
    url, celery = f"redis://127.0.0.1:{port}/0", cast("Any", app)
    before = celery.conf.broker_url
    settings.REDIS_URL = celery.conf.broker_url = url
    celery._after_fork()  # forgets its connection pools
    try:
        wait_for(lambda: _answers(url), "Redis answers")
        yield url, port
    finally:
        settings.REDIS_URL = celery.conf.broker_url = before
        celery._after_fork()
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return bool(redis.Redis.from_url(url).ping())
    except redis.ConnectionError:
        return False


@contextmanager
def nodes_of(count: int, delay_ms: float = 0.0, bandwidth_gbps: float | None = None) -> Iterator[Nodes]:
    """Start daemons on connected nodes."""
    with tempfile.TemporaryDirectory(prefix="parlab-nodes-") as name, broker(Path(name)) as (url, port):
        directory = Path(name)
        links = ["--delay-ms", str(delay_ms)] if delay_ms else []
        links += ["--bandwidth-gbps", str(bandwidth_gbps)] if bandwidth_gbps else []
        daemon = [sys.executable, "-m", "runners.node.daemon", "--node", "bench-{node}", "--address", "{address}"]
        daemon += ["--pool", POOL, "--no-measure", "--state-dir", f"{name}/state-{{node}}"]
        environment = {
            "REDIS_URL": url,
            "PARLAB_NODE_KEY": settings.NODE_KEY.decode(),
            "PARLAB_ALLOWED_COMMANDS": str(allow_commands(directory / "allowed.json")),
        }
        Node.objects.filter(pool=POOL).update(last_heartbeat_at=None)
        with (directory / "log").open("wb") as log, started_nodes(count, port, links, daemon, environment, log):
            workers = SeeingWorkers(url)
            try:
                online = Node.objects.online().filter(pool=POOL)
                workers.until(lambda: online.count() == count, f"{count} nodes are online", TRAINING_S)
                yield Nodes(workers, url, port)
            finally:
                workers.connection.release()


@contextmanager
def started_nodes(
    count: int, relay: int, links: list[str], command: list[str], environment: dict[str, str], log: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command on each of several nodes of this machine."""
    nodes = [sys.executable, "-m", "runners.links.nodes", "--count", str(count), "--relay", str(relay), *links]
    variables = ["env", *(f"{name}={value}" for name, value in {"OMP_NUM_THREADS": "1", **environment}.items())]
    process = subprocess.Popen([*variables, *nodes, "--", *command], cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


PIPELINE: dict[str, Any] = {
    "model": SMALL_GPT | {"num_layers": 3},
    "train": {"global_batch_size": 6, "iterations": 2, "warmup_steps": 1},
    "parallel": {"engine": "pipeline", "pipeline_parallel_size": 3},
    "cluster": {"pool": POOL, "nodes": 3, "device": "cpu"},
}


def start_overhead_s(scale: Scale) -> Result:
    """Measure what parlab adds to torchrun by hand on three nodes, from the command to the end of the first step."""
    repeats = scale.repeats(2)
    ours, theirs = [], []
    with nodes_of(3) as nodes:
        for _ in range(repeats):
            ours.append(nodes.run(PIPELINE).first_step_s())
            theirs.append(_by_hand(nodes.port))
    overhead = median(ours) - median(theirs)
    against = f"torchrun by hand: {median(theirs):.1f} s, parlab {median(ours):.1f} s"
    return Result(overhead, against, repeats)


def _by_hand(relay: int) -> float:
    """Return the seconds from the start of torchrun on three nodes to the end of the first step."""
    with tempfile.TemporaryDirectory(prefix="parlab-by-hand-") as name:
        directory = Path(name)
        data = {**PIPELINE, "cluster": {"nodes": 3, "device": "cpu"}}
        (directory / "config.json").write_text(json.dumps(data))
        torchrun = (
            f"{sys.executable} -m torch.distributed.run --nnodes=3 --node-rank={{node}} --nproc-per-node=1"
            f" --rdzv-backend=static --master-addr=$MASTER --master-port={PORT} --local-addr={{address}}"
            f" -m runners.engines.pipeline --config {name}/config.json"
        )
        # The first address of the nodes: that of a namespace, or of loopback.
        master = "case {address} in 127.*) MASTER=127.0.0.2 GLOO=lo;; *) MASTER=198.18.0.1 GLOO=parlab0;; esac"
        script = f"{master}; export GLOO_SOCKET_IFNAME=$GLOO; date +%s.%N > {name}/began-{{node}}; exec {torchrun}"
        with (directory / "output").open("wb") as log, started_nodes(3, relay, [], ["sh", "-c", script], {}, log):
            wait_for(lambda: len(_first_steps(directory)) == 3, "all ranks have done a step", TRAINING_S)
        began = min(float(path.read_text()) for path in directory.glob("began-*"))
        return first_step(_first_steps(directory)) - began


def _first_steps(directory: Path) -> list[dict[str, Any]]:
    events = events_of((directory / "output").read_bytes().rpartition(b"\n")[0])
    return [event for event in events if event["event"] == "step" and event["step"] == 1]
