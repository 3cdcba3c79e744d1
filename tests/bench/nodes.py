"""Runs over several nodes: daemons in network namespaces (as root, else on loopback), the server's own code.

`three_nodes_deviation_pct` also writes build/three_nodes.json: both published tables on three daemons and on the
emulated links of one supervisor.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, cast

import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client, override_settings

from parlab.celery import app
from parlab.demo.content import allow_commands
from parlab.demo.networks import LINKS, network_sweeps
from parlab.demo.sweeps import SMALL_GPT, scaling
from parlab.embedded import free_port, redis_command
from parlab.fleet import services
from parlab.lab.models import Attempt, Experiment, Node
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from runners.config import RunConfig, expand
from runners.wire.protocol import Batch, RunState
from tests.bench.lists import PLAIN_FILES
from tests.bench.networks import ROOT, emulation
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
    against = f"torchrun by hand: {median(theirs):.1f} s, parlab {median(ours):.1f} s; below 5 s"
    return Result(overhead, "s", against, 5 / max(overhead, 0.01), repeats)


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


# --- the published cases ---------------------------------------------------------------------------------------------

CELLS = 1
"""Of the 24 of both tables; PARLAB_BENCH_CELLS chooses another number."""
NODES = 4
"""Of the 16 of the published command; PARLAB_BENCH_NODES chooses another number, a multiple of 2."""


def three_nodes_deviation_pct(scale: Scale) -> Result:
    """Measure how far three daemons deviate from the emulation of one supervisor, over both published tables."""
    chosen = _cells(1 if scale.is_quick else int(os.environ.get("PARLAB_BENCH_CELLS", CELLS)))
    cells = []
    for delay_ms, rate in LINKS:
        here = [config for config in chosen if config.network.delay_ms == delay_ms]
        if not here:
            continue
        with nodes_of(3, float(delay_ms or 0.0), rate) as nodes:
            for config in here:
                data = config.resolved()
                data["train"] |= {"iterations": 2 if scale.is_quick else 3}
                data["train"] |= {"global_batch_size": 12} if scale.is_quick else {}
                bare = {**data, "network": {"apply": "none"}, "cluster": {**data["cluster"], "pool": POOL}}
                # At the same time: the ranks mostly wait, and a busy machine slows down both.
                with emulation(data) as emulated_steps:
                    over_nodes, emulated = median(nodes.run(bare).step_times_s()), median(emulated_steps())
                cells.append(
                    {
                        "schedule": config.parallel.schedule,
                        "micro_batch_size": config.train.micro_batch_size,
                        "delay_ms": delay_ms,
                        "bandwidth_gbps": rate,
                        "three_daemons_s": round(over_nodes, 3),
                        "one_supervisor_s": round(emulated, 3),
                        "deviation_pct": round(100 * (over_nodes / emulated - 1), 2),
                    }
                )
                sys.stderr.write(f"{cells[-1]}\n")
    path = ROOT / "build" / "three_nodes.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(cells, indent=1) + "\n")
    worst = max(cells, key=lambda cell: abs(float(str(cell["deviation_pct"]))))
    deviation = abs(float(str(worst["deviation_pct"])))
    against = (
        f"one supervisor: {worst['one_supervisor_s']} s, daemons {worst['three_daemons_s']} s ({worst['schedule']},"
        f" micro batch {worst['micro_batch_size']}, {worst['delay_ms']} ms); at most 3 %, {len(cells)} cells"
    )
    return Result(deviation, "%", against, 3 / max(deviation, 0.01), 1)


def _cells(count: int) -> list[RunConfig]:
    """Return so many cells of both tables: those with small micro batches and long delays first."""
    sweep = network_sweeps()[1]
    points = [point.config for point in expand(sweep.data, sweep.sweep) if point.config]
    tables = [config for config in points if config.parallel.warmup_slope == 1]
    return sorted(tables, key=_dependence)[:count]


def _dependence(config: RunConfig) -> tuple[int, float, str]:
    return config.train.micro_batch_size, -config.network.delay_ms, config.parallel.schedule


def bert_nodes_first_step_s(scale: Scale) -> Result:
    """Measure the start of the published Megatron BERT command on nodes of 2 ranks: TP 2 x PP 2, the rest is DP."""
    count = 2 if scale.is_quick else int(os.environ.get("PARLAB_BENCH_NODES", NODES))
    sweep = scaling(settings.BASE_DIR)
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": count // 2}
    train = sweep.data["train"] | {"global_batch_size": 4 * count, "iterations": 4}
    data = {
        **sweep.data,
        "train": train,
        "parallel": sweep.data["parallel"] | sizes,
        "cluster": {"pool": POOL, "nodes": count, "gpus_per_node": 2, "device": "cpu"},
        "launcher": {"timeout_s": 3000, "collective_timeout_s": 1200},
    }
    with nodes_of(count) as nodes:
        measured = nodes.run(data)
    rendered_s = page_s(measured.attempt)
    seconds = measured.first_step_s()
    against = f"{2 * count} ranks on {count} daemons; the page of the run took {rendered_s:.2f} s"
    return Result(seconds, "s", against, 1.0, 1)


def page_s(attempt: Attempt) -> float:
    """Return the seconds in which the server renders the page of a run; raises RuntimeError if it fails."""
    client = Client(SERVER_NAME="127.0.0.1")
    with override_settings(STORAGES=PLAIN_FILES):
        client.force_login(User.objects.get(username="bench"))
        began = time.perf_counter()
        response = client.get(attempt.run.get_absolute_url())
    if response.status_code != 200:
        raise RuntimeError(f"the page of the run answers {response.status_code}")
    return time.perf_counter() - began


BENCHMARKS: dict[str, Callable[[Scale], Result]] = {
    "multi_node_start_overhead_s": start_overhead_s,
    "three_nodes_deviation_pct": three_nodes_deviation_pct,
    "bert_nodes_first_step_s": bert_nodes_first_step_s,
}
