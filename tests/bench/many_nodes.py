"""One run over 128 nodes with 8 ranks each: a worker of the server, and one process that answers for all nodes.

128 daemons need 15 GB. The 1,024 ranks are processes that sleep and print.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from django.contrib.auth.models import User

from parlab.lab.models import Attempt, Node
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.runs import config_launch
from runners.wire.protocol import RunState
from tests.bench.load import WORKER, Starter, beat, cpu_s
from tests.bench.many_daemons import POOL, RANKS
from tests.bench.nodes import broker, page_s
from tests.bench.result import Result, Scale
from tests.patience import TRAINING_S, wait_for

STEPS, SLEEP_S = 2, 5


def thousand_ranks_page_s(scale: Scale) -> Result:
    """Measure the page of a run with 1,024 ranks while it runs, and what the server does for its nodes meanwhile."""
    count, sleep_s = (4, 1) if scale.is_quick else (128, SLEEP_S)
    with ExitStack() as held:
        directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="parlab-many-")))
        url, _ = held.enter_context(broker(directory))
        start = Starter(held, directory, url)
        worker = start([*WORKER, "--hostname=bench@%h"])
        start(beat(directory))
        start(["-m", "tests.bench.many_daemons", url, str(count), str(STEPS), str(sleep_s)])
        wait_for(lambda: Node.objects.online().filter(pool=POOL).count() == count, "all nodes are online", TRAINING_S)
        attempt = _launched(count)
        page_s(attempt)  # the first page of a process also imports the views
        began, used_s = time.perf_counter(), cpu_s(worker)
        wait_for(lambda: _state(attempt) is RunState.RUNNING, "all nodes run", TRAINING_S)
        start_s = time.perf_counter() - began
        wait_for(
            lambda: Attempt.objects.filter(pk=attempt.pk, last_step__gte=1).exists(), "a step is stored", TRAINING_S
        )
        pages = [page_s(attempt) for _ in range(scale.repeats(3))]
        wait_for(lambda: _state(attempt).is_final, "the run ends", TRAINING_S)
        used_s, seconds = cpu_s(worker) - used_s, time.perf_counter() - began
    if attempt.state != RunState.FINISHED:
        raise RuntimeError(f"the run over {count} nodes has ended as {attempt.state}: {attempt.reason}")
    pages.append(page_s(attempt))
    against = (
        f"{count * RANKS} ranks on {count} nodes: all running after {start_s:.1f} s,"
        f" ended after {seconds:.1f} s, worker {used_s / seconds:.2f} cores"
    )
    return Result(max(pages), "s", against, 1 / max(pages), len(pages))


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


BENCHMARKS: dict[str, Callable[[Scale], Result]] = {"thousand_ranks_page_s": thousand_ranks_page_s}
