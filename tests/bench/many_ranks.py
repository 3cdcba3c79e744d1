"""One run of 1,024 ranks on 128 nodes: storing its batches, its heat map, its log and its page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.test import Client, override_settings

from parlab.ingest.batches.events import Limits, parse
from parlab.ingest.batches.services import batch_apply
from parlab.lab.models import Attempt, Member, Node, Run
from parlab.series import store
from runners.wire.protocol import Batch
from tests.bench.database import new_attempt
from tests.bench.lists import PLAIN_FILES
from tests.bench.result import Result, Scale

NODES, RANKS_PER_NODE, STEPS = 128, 8, 200
SLOW_RANK = 5
"""Computes 12 % longer than the others in the second half."""
_STEPS_PER_BATCH = 20
_STEP_S, _COMPUTE_S = 0.5, 0.4
_held: list[Attempt] = []


def points_per_s(scale: Scale) -> Result:
    """Measure all batches of the run, one after the other, as one worker stores them; compare with parsing alone."""
    nodes = 2 if scale.is_quick else NODES
    attempt = new_run(nodes)
    sent = [batch_of(attempt, node, first) for first in range(1, STEPS + 1, _STEPS_PER_BATCH) for node in range(nodes)]
    began = time.perf_counter()
    for batch in sent:
        batch_apply(batch=batch)
    seconds = time.perf_counter() - began
    began = time.perf_counter()
    for batch in sent:
        parse(batch.output, limits=Limits(nodes * RANKS_PER_NODE))
    parse_s = time.perf_counter() - began
    points = sum(info.points for info in store.metrics(attempt.pk))
    Run.objects.filter(pk=attempt.run_id).update(state="finished")
    Attempt.objects.filter(pk=attempt.pk).update(state="finished")
    _held[:] = [attempt]
    against = f"{points / parse_s:,.0f} parsed only; {1e3 * seconds / len(sent):.0f} ms per batch"
    return Result(points / seconds, "points/s", against, parse_s / seconds, 1)


def figure_ms(scale: Scale) -> Result:
    """Measure the heat map as JSON; compare with reading the points of all its series into memory."""
    client, address = _page(scale)
    repeats = scale.repeats(3)
    seconds, response = _timed(lambda: client.get(f"{address}figures/ranks.json"), repeats)
    names = ["step_time_s", "timer/backward-params-all-reduce"]
    read_s, _ = _timed(lambda: store.read_many([_held[0].pk], names), repeats)
    against = f"{1e3 * read_s:.0f} to read all points; {len(response.content) / 1e3:.0f} kB"
    return Result(1e3 * seconds, "ms", against, read_s / seconds, repeats)


def page_ms(scale: Scale) -> Result:
    """Measure the page of the run, with the log of all nodes; compare with its parts."""
    client, address = _page(scale)
    repeats = scale.repeats(3)
    seconds, _ = _timed(lambda: client.get(address), repeats)
    rank_s, _ = _timed(lambda: client.get(f"{address}log/", {"rank": "9"}), repeats)
    merged_s, _ = _timed(lambda: client.get(f"{address}log/"), repeats)
    against = f"log of a rank {1e3 * rank_s:.0f}, of all {1e3 * merged_s:.0f}"
    return Result(1e3 * seconds, "ms", against, merged_s / seconds, repeats)


def _page(scale: Scale) -> tuple[Client, str]:
    if not _held:
        points_per_s(scale)
    client = Client(SERVER_NAME="localhost")
    client.force_login(get_user_model().objects.get(username="bench"))
    return client, _held[0].run.get_absolute_url()


def _timed(get: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    times = []
    for _ in range(repeats):
        cache.clear()
        began = time.perf_counter()
        with override_settings(STORAGES=PLAIN_FILES):
            response = get()
        times.append(time.perf_counter() - began)
    return median(times), response


def new_run(nodes: int) -> Attempt:
    """Create a running attempt on so many nodes."""
    attempt = new_attempt()
    attempt.run.resolved["cluster"] |= {"nodes": nodes, "gpus_per_node": RANKS_PER_NODE}
    attempt.run.save()
    for number in range(nodes):
        node, _ = Node.objects.get_or_create(name=f"gpu{number:03}")
        fields = {"node": node, "state": "running"}
        Member.objects.update_or_create(attempt=attempt, node_rank=number, defaults=fields)  # new_attempt has one
    return attempt


def batch_of(attempt: Attempt, node_rank: int, first_step: int) -> Batch:
    """Return a batch of a node: step events of its ranks in their streams, and a line of each rank."""
    random = np.random.default_rng([node_rank, first_step])
    output, streams, stamps = bytearray(), list[tuple[int, int, bool]](), list[tuple[int, float]]()
    for rank in range(node_rank * RANKS_PER_NODE, (node_rank + 1) * RANKS_PER_NODE):
        streams.append((len(output), rank, False))
        for step in range(first_step, first_step + _STEPS_PER_BATCH):
            at = 1.76e9 + step * _STEP_S + rank / 1e5
            stamps.append((len(output), at))
            compute_s = _COMPUTE_S * float(random.normal(1, 0.005))
            compute_s *= 1.12 if rank == SLOW_RANK and step > STEPS // 2 else 1.0
            event = {
                "parlab": 1,
                "t": round(at, 3),
                "rank": rank,
                "event": "step",
                "step": step,
                "warmup": step <= 2,
                "step_time_s": _STEP_S,
                "loss": round(10 / step**0.1, 6),
                "memory_bytes": 512 * int(random.normal(4e6, 1e3)),
                "timers_s": {
                    "forward-compute": round(compute_s, 6),
                    "backward-params-all-reduce": round(_STEP_S - compute_s, 6),
                },
            }
            output += json.dumps(event, separators=(",", ":")).encode() + b"\n"
        output += b"rank %d has done step %d\n" % (rank, step)
    sequence = (first_step - 1) * 1_000_000
    return Batch(
        run=attempt.run_id,
        attempt=attempt.number,
        node=f"gpu{node_rank:03}",
        node_rank=node_rank,
        sequence=sequence,
        next_sequence=sequence + _STEPS_PER_BATCH * 1_000_000,
        output=bytes(output),
        streams=streams,
        stamps=stamps,
    )
