"""One run over 128 nodes with 8 ranks each: the server's own code, and one process that answers for all nodes.

128 daemons need 15 GB. The 1,024 ranks are processes that sleep and print.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User

from parlab.fleet import services
from parlab.lab import services as lab
from parlab.lab.models import Attempt, Node
from runners.protocol import RunState
from tests.bench.many_daemons import POOL, RANKS
from tests.bench.networks import ROOT
from tests.bench.nodes import broker, page_s
from tests.bench.result import Result, Scale
from tests.fleet.workers import Workers
from tests.patience import TRAINING_S

STEPS, SLEEP_S = 2, 5


def thousand_ranks_page_s(scale: Scale) -> Result:
    """Measure the page of a run with 1,024 ranks while it runs, and what the server does for its nodes meanwhile."""
    count, steps = (4, 2) if scale.is_quick else (128, STEPS)
    with tempfile.TemporaryDirectory(prefix="parlab-many-") as name, broker(Path(name)) as (url, _):
        numbers = [str(count), str(steps), "1" if scale.is_quick else str(SLEEP_S)]
        command = [sys.executable, "-m", "tests.bench.many_daemons", url, *numbers]
        environment = {**os.environ, "PARLAB_NODE_KEY": settings.NODE_KEY.decode()}
        workers = TimedWorkers(url)
        with subprocess.Popen(command, cwd=ROOT, env=environment) as fleet:
            try:
                return _measured(workers, count, scale)
            finally:
                fleet.terminate()
                workers.connection.release()


class TimedWorkers(Workers):
    """Workers that measure how long messages take."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.heartbeats_s: list[float] = []
        self.batches_s: list[float] = []

    def take_heartbeat(self, content: Any) -> None:
        """Apply a heartbeat and measure that."""
        began = time.perf_counter()
        super().take_heartbeat(content)
        self.heartbeats_s.append(time.perf_counter() - began)

    def take_batch(self, content: Any) -> None:
        """Apply a batch and measure that."""
        began = time.perf_counter()
        super().take_batch(content)
        self.batches_s.append(time.perf_counter() - began)


def _measured(workers: TimedWorkers, count: int, scale: Scale) -> Result:
    def until(condition: Callable[[], bool], what: str) -> None:
        def dispatched() -> bool:
            services.dispatch()  # as beat does
            return condition()

        workers.until(dispatched, what, TRAINING_S)

    until(lambda: Node.objects.online().filter(pool=POOL).count() == count, "all nodes are online")
    attempt = _launched(count)
    began = time.perf_counter()
    services.dispatch()
    dispatch_s = time.perf_counter() - began
    until(lambda: _state(attempt) is RunState.RUNNING, "all nodes run")
    start_s = time.perf_counter() - began
    until(lambda: Attempt.objects.filter(pk=attempt.pk, last_step__gte=1).exists(), "a step is stored")
    pages = [page_s(attempt) for _ in range(scale.repeats(3))]
    until(lambda: _state(attempt).is_final, "the run ends")
    if attempt.state != RunState.FINISHED:
        raise RuntimeError(f"the run over {count} nodes has ended as {attempt.state}: {attempt.reason}")
    pages.append(page_s(attempt))
    against = (
        f"{count * RANKS} ranks on {count} nodes: dispatch {dispatch_s:.2f} s, all running after {start_s:.1f} s,"
        f" heartbeat {1e3 * median(workers.heartbeats_s):.1f} ms, batch {1e3 * median(workers.batches_s):.1f} ms"
    )
    return Result(max(pages), "s", against, 1 / max(pages), len(pages))


def _launched(count: int) -> Attempt:
    """Queue the run; the caller dispatches it."""
    user, _ = User.objects.get_or_create(username="bench", defaults={"is_superuser": True})
    experiment = lab.experiment_create(name="A thousand ranks", owner=user)
    ranks = count * RANKS
    data = {
        "train": {"global_batch_size": ranks, "iterations": STEPS},
        "parallel": {"engine": "command", "data_parallel_size": ranks},
        "command": {"argv": ["/bin/sleep", "60"]},
        "launcher": {"kind": "plain"},
        "cluster": {"pool": POOL, "nodes": count, "gpus_per_node": RANKS, "device": "cpu"},
    }
    config = lab.config_save(experiment=experiment, data=data, sweep={}, user=user)
    (run,) = lab.config_launch(config=config, user=user).created
    return run.current_attempt()


def _state(attempt: Attempt) -> RunState:
    attempt.refresh_from_db()
    return RunState(attempt.state)


BENCHMARKS: dict[str, Callable[[Scale], Result]] = {"thousand_ranks_page_s": thousand_ranks_page_s}
