"""A full queue and a large cluster that is idle: assignment of all runs, and their orders in Redis."""

import tempfile
import time
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from parlab.fleet import services
from parlab.lab.models import Node, Run
from parlab.lab.services.configs import config_save
from parlab.lab.services.experiments import experiment_create
from parlab.lab.services.runs import config_launch
from runners.wire.protocol import RunState
from tests.bench.nodes import broker
from tests.bench.result import Result, Scale

POOL = "bench-dispatch"


def dispatch_1000_runs_s(scale: Scale) -> Result:
    """Measure the dispatch of 1,000 queued runs to 1,000 idle nodes, until the orders are in Redis."""
    count = scale.of(1_000)
    with tempfile.TemporaryDirectory(prefix="parlab-dispatch-") as name, broker(Path(name)):
        now = timezone.now()
        hardware: dict[str, list[Any]] = {"gpus": []}
        Node.objects.bulk_create(
            Node(name=f"dispatch-{number}", pool=POOL, hardware=hardware, last_heartbeat_at=now)
            for number in range(count)
        )
        user, _ = User.objects.get_or_create(username="bench", defaults={"is_superuser": True})
        experiment = experiment_create(name="A full queue", owner=user)
        sweep = {"train.seed": list(range(count))}
        config = config_save(experiment=experiment, data={"cluster": {"pool": POOL}}, sweep=sweep, user=user)
        config_launch(config=config, user=user)
        queued = Run.objects.filter(experiment=experiment, state=RunState.QUEUED)
        began, statements, rounds = time.perf_counter(), 0, 0
        while queued.exists():
            Node.objects.filter(pool=POOL).update(last_heartbeat_at=timezone.now())
            with CaptureQueriesContext(connection) as captured:
                sent = services.dispatch()
            statements, rounds = statements + len(captured), rounds + 1
            if not sent:
                raise RuntimeError(f"{queued.count()} of {count} runs were not dispatched")
        seconds = time.perf_counter() - began
    against = f"{count} runs on {count} nodes, {rounds} rounds with {statements} statements"
    return Result(seconds, against, 1)
