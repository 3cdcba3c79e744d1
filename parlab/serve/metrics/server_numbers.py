"""Numbers of the server: queues and their lag, requests, tasks, nodes, runs, refused messages."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator

import redis
from django.conf import settings
from django.db.models import Count, Sum

from parlab import shared_counters
from parlab.client.version import VERSION
from parlab.lab.models import Node, RefusedMessage, Run
from parlab.request_times import REQUESTS, SECONDS
from parlab.serve import readiness
from parlab.serve.metrics.exposition import Family, Sample
from parlab.shared_counters import BOUNDS_S
from parlab.task_times import TASK_SECONDS, TASKS
from runners.wire.message_filter import Unreadable, read
from runners.wire.protocol import BACKLOG_QUEUE, INGEST_QUEUE


def server_numbers() -> Iterator[Family]:
    """Yield the metrics of the server; where Redis is away, those of the database alone."""
    yield Family("parlab_info", "gauge", "Release of the server.", [Sample(1, {"version": VERSION})])
    problems = readiness.readiness()
    parts = [Sample(float(not problem), {"part": name}) for name, problem in problems.items()]
    yield Family("parlab_ready", "gauge", "Whether a part of the server works, as /ready tells.", parts)
    yield from _of_database()
    try:
        yield from _queues()
        yield from _counted()
    except (redis.RedisError, OSError):
        return


def _of_database() -> Iterator[Family]:
    active = Run.everything.active().order_by().values_list("state").annotate(Count("pk"))
    states = [Sample(count, {"state": state}) for state, count in active]
    yield Family("parlab_active_runs", "gauge", "Runs that are queued or running.", states)
    nodes = Counter((node.pool, "online" if node.is_online else "offline") for node in Node.objects.all())
    pools = [Sample(count, {"pool": pool, "state": state}) for (pool, state), count in sorted(nodes.items())]
    yield Family("parlab_nodes", "gauge", "Nodes by pool.", pools)
    rows = RefusedMessage.objects.order_by().values_list("queue").annotate(Sum("count"))
    refused = [Sample(count, {"queue": queue}) for queue, count in rows[:50]]
    yield Family("parlab_refused_messages_total", "counter", "Messages that were refused.", refused)


def _queues() -> Iterator[Family]:
    names = [queue.name for queue in settings.CELERY_TASK_QUEUES]
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
        lengths = [Sample(client.llen(name), {"queue": name}) for name in names]
        yield Family("parlab_queue_messages", "gauge", "Messages that wait for a worker.", lengths)
        lag = [Sample(_age_s(client, name), {"queue": name}) for name in (INGEST_QUEUE, BACKLOG_QUEUE)]
        yield Family("parlab_queue_lag_seconds", "gauge", "Age of the oldest output of a node that waits.", lag)
        memory = [Sample(client.info("memory")["used_memory"])]
        yield Family("parlab_redis_memory_bytes", "gauge", "Memory of Redis.", memory)


def _age_s(client: redis.Redis, queue: str) -> float:
    """Return how long the oldest batch of a queue has waited (s); batches have the time at which they were sent."""
    oldest = client.lindex(queue, -1)
    if not isinstance(oldest, bytes):
        return 0.0
    try:
        number = float(json.loads(read(oldest, queue, lambda *_: "").arguments[0]["payload"])["number"])
    except (Unreadable, ValueError, TypeError, LookupError, RecursionError):
        return 0.0  # a worker refuses it
    return max(0.0, time.time() - number / 1e6)


def _counted() -> Iterator[Family]:
    counted = shared_counters.read()
    requests = _counter(counted, REQUESTS, ("part", "status"))
    yield Family(f"parlab_{REQUESTS}_total", "counter", "Requests by part of the server and status.", requests)
    times = _histogram(counted, SECONDS, "part")
    yield Family(f"parlab_{SECONDS}", "histogram", "Time to answer a request.", times)
    tasks = _counter(counted, TASKS, ("task", "state"))
    yield Family(f"parlab_{TASKS}_total", "counter", "Tasks of workers by their end.", tasks)
    yield Family(f"parlab_{TASK_SECONDS}", "histogram", "Time of a task.", _histogram(counted, TASK_SECONDS, "task"))


Counted = dict[tuple[str, ...], float]


def _counter(counted: Counted, name: str, labels: tuple[str, ...]) -> list[Sample]:
    rows = sorted((key[1:], value) for key, value in counted.items() if key[0] == name and len(key) == 1 + len(labels))
    return [Sample(value, dict(zip(labels, key, strict=True))) for key, value in rows]


def _histogram(counted: Counted, name: str, label: str) -> list[Sample]:
    samples = []
    for value in sorted({key[1] for key in counted if key[0] == f"{name}_sum"}):
        total = 0.0
        for bound in (*(f"{each:g}" for each in BOUNDS_S), "+Inf"):
            total += counted.get((f"{name}_bucket", value, bound), 0.0)
            samples.append(Sample(total, {label: value, "le": bound}, "_bucket"))
        samples.append(Sample(counted[f"{name}_sum", value], {label: value}, "_sum"))
        samples.append(Sample(total, {label: value}, "_count"))
    return samples
