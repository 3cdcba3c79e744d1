"""How often the nodes of a pool end attempts, for the time between checkpoints."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from parlab.advice.goodput import Failures
from parlab.lab.models import Attempt, Run
from runners.wire.protocol import RunState

WITHIN = timedelta(days=180)
MAX_ATTEMPTS = 5_000
"""The latest ones."""


def node_failures(run: Run) -> Failures:
    """Return the failures of the nodes of a run's pool: attempts that were lost, in the GPU time of all attempts."""
    pool = (run.resolved.get("cluster") or {}).get("pool")
    attempts = Attempt.objects.filter(
        run__origin=Run.Origin.MEASURED,
        run__resolved__cluster__pool=pool,
        started_at__gte=timezone.now() - WITHIN,
        ended_at__isnull=False,
    ).order_by("-pk")
    sizes = ("run__resolved__cluster__nodes", "run__resolved__cluster__gpus_per_node")
    lost, gpu_s = 0, 0.0
    for state, started, ended, nodes, gpus in attempts.values_list("state", "started_at", "ended_at", *sizes)[
        :MAX_ATTEMPTS
    ]:
        lost += state == RunState.LOST
        gpu_s += max(0.0, (ended - started).total_seconds()) * int(nodes or 1) * int(gpus or 1)
    return Failures(lost, gpu_s)
