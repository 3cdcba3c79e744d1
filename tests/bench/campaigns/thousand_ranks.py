"""One run over 128 nodes with 8 ranks each: a worker of the server, and one process that answers for all nodes.

128 daemons need 15 GB; one process speaks for them, and prints what the ranks would.
"""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from django.contrib.auth.models import User
from django.test import Client, override_settings

from parlab.lab.models import Attempt, Node
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.runs import config_launch
from runners.wire.protocol import RunState
from tests.bench.campaigns.simulated_daemons import POOL
from tests.bench.lists import PLAIN_FILES
from tests.bench.load import WORKER, Starter, beat, cpu_s
from tests.bench.nodes import broker
from tests.bench.result import Result, Scale
from tests.patience import TRAINING_S, wait_for

RANKS, STEPS, STEP_S = 8, 4, 5


def thousand_ranks_page_s(scale: Scale) -> Result:
    """Measure the page of a run with 1,024 ranks while it runs, and what the server does for its nodes meanwhile."""
    count, step_s = (4, 1) if scale.is_quick else (128, STEP_S)
    with ExitStack() as held:
        directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="parlab-many-")))
        url, _ = held.enter_context(broker(directory))
        start = Starter(held, directory, url)
        worker = start([*WORKER, "--hostname=bench@%h"])
        start(beat(directory))
        start(["-m", "tests.bench.campaigns.simulated_daemons", url, str(count), str(step_s)])
        wait_for(lambda: Node.objects.online().filter(pool=POOL).count() == count, "all nodes are online", TRAINING_S)
        attempt = _launched(count)
        address = attempt.run.get_absolute_url()
        _page(address)  # the first page of a process also imports the views
        began, used_s = time.perf_counter(), cpu_s(worker)
        wait_for(lambda: _state(attempt) is RunState.RUNNING, "all nodes run", TRAINING_S)
        start_s = time.perf_counter() - began
        wait_for(
            lambda: Attempt.objects.filter(pk=attempt.pk, last_step__gte=1).exists(), "a step is stored", TRAINING_S
        )
        pages = [_page(address).seconds for _ in range(scale.repeats(3))]
        wait_for(lambda: _state(attempt).is_final, "the run ends", TRAINING_S)
        used_s, seconds = cpu_s(worker) - used_s, time.perf_counter() - began
    if attempt.state != RunState.FINISHED:
        raise RuntimeError(f"the run over {count} nodes has ended as {attempt.state}: {attempt.reason}")
    pages.append(_page(address).seconds)
    heat_map = _page(f"{address}figures/ranks.json")
    against = (
        f"{count * RANKS} ranks on {count} nodes: all running after {start_s:.1f} s,"
        f" ended after {seconds:.1f} s, worker {used_s / seconds:.2f} cores; heat map {heat_map.seconds:.2f} s,"
        f" {heat_map.bytes / 1e3:.0f} kB"
    )
    return Result(max(pages), against, len(pages))


class Page(NamedTuple):
    """An answer of the server, rendered in this process."""

    seconds: float
    bytes: int


def _page(address: str) -> Page:
    client = Client(SERVER_NAME="127.0.0.1")
    with override_settings(STORAGES=PLAIN_FILES):
        client.force_login(User.objects.get(username="bench"))
        began = time.perf_counter()
        response = client.get(address)
    if response.status_code != 200:
        raise RuntimeError(f"{address} returned status {response.status_code}")
    return Page(time.perf_counter() - began, len(response.content))


def _launched(count: int) -> Attempt:
    """Queue the run, which beat dispatches."""
    user, _ = User.objects.get_or_create(username="bench", defaults={"is_superuser": True})
    experiment = experiment_create(name="A thousand ranks", owner=user)
    ranks = count * RANKS
    data = {
        "train": {"global_batch_size": ranks, "iterations": STEPS},
        "parallel": {"engine": "command", "data_parallel_size": ranks},
        "command": {"argv": ["/bin/sleep", "60"]},
        "launcher": {"kind": "plain"},
        "cluster": {"pool": POOL, "nodes": count, "gpus_per_node": RANKS, "device": "cpu"},
    }
    config = config_save(experiment=experiment, data=data, sweep={}, user=user)
    (run,) = config_launch(config=config, user=user).created
    return run.current_attempt()


def _state(attempt: Attempt) -> RunState:
    attempt.refresh_from_db()
    return RunState(attempt.state)
