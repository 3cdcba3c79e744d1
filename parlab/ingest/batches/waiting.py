"""Batches and heartbeats that wait in Redis: taken together, live batches first, so that few statements store many."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import redis

from parlab.refusals import refuse
from runners.wire.message_filter import Unreadable, message, read, take_next
from runners.wire.protocol import APPLY_BATCH_TASK, BACKLOG_QUEUE, CONTROL_QUEUE, HEARTBEAT_TASK, INGEST_QUEUE
from runners.wire.trust import LIFETIME_S

MAX_MESSAGES = 256
FEW_MESSAGES = 32
"""Of up to so many that wait, none are left for another worker."""
MAX_BYTES = 2 << 20
"""Of messages taken at once; their output is about five times as large."""

GATHER_S = 0.1
"""Small messages are taken at most so often: most of the work is per group, and many nodes send a few lines each."""
SMALL_BYTES = 64 << 10
_BATCHES = (INGEST_QUEUE, BACKLOG_QUEUE)
_taken_at: dict[str, float] = {}

# Live batches until one of the limits, then what is left for the backlog, of which at least one batch is taken. A
# script, because the sizes of messages are known only once they are taken. Of many that wait, half: those are stored
# earlier, and another worker stores the rest meanwhile. A message of another task ends a group: it is for Celery.
_TAKE = """
local taken, bytes, most = {{}, {}}, 0, tonumber(ARGV[2])
local waiting = redis.call('LLEN', KEYS[1]) + redis.call('LLEN', KEYS[2])
local limit = math.min(tonumber(ARGV[1]), math.max(tonumber(ARGV[3]), math.ceil(waiting / 2)))
for place, queue in ipairs(KEYS) do
  while #taken[1] + #taken[2] < limit and (bytes < most or (place == 2 and #taken[2] == 0)) do
    local raw = redis.call('LINDEX', queue, -1)
    if not raw or not string.find(raw, ARGV[4], 1, true) then break end
    redis.call('RPOP', queue)
    bytes = bytes + #raw
    table.insert(taken[place], raw)
  end
end
return taken
"""


def take_waiting(url: str) -> list[Any]:
    """Take waiting batches out of the queues of Redis and return their envelopes; live ones come first.

    A batch that is taken and then not stored is sent again by its node, like every batch without an answer.
    """
    taken = _taken(url)
    if sum(map(len, taken[0] + taken[1])) < SMALL_BYTES and _rest(INGEST_QUEUE):
        taken = [before + later for before, later in zip(taken, _taken(url), strict=True)]
    return [
        envelope
        for queue, messages in zip(_BATCHES, taken, strict=True)
        for envelope in _envelopes(queue, APPLY_BATCH_TASK, messages)
    ]


def _taken(url: str) -> list[list[bytes]]:
    limits = (str(MAX_MESSAGES), str(MAX_BYTES), str(FEW_MESSAGES), f'"{APPLY_BATCH_TASK}"')
    taken: Any = client(url).eval(_TAKE, len(_BATCHES), *_BATCHES, *limits)
    return list(taken)


def take_heartbeats(url: str) -> list[Any]:
    """Take waiting heartbeats out of their queue in Redis and return their envelopes, oldest first."""
    if not client(url).llen(INGEST_QUEUE):
        _rest(CONTROL_QUEUE)
    taken = take_next(client(url), CONTROL_QUEUE, HEARTBEAT_TASK, MAX_MESSAGES)
    return list(_envelopes(CONTROL_QUEUE, HEARTBEAT_TASK, taken))


def _rest(queue: str) -> bool:
    """Wait if the last group of a queue was taken a moment ago; return whether that was so."""
    left_s = _taken_at.get(queue, -GATHER_S) + GATHER_S - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)
    _taken_at[queue] = time.monotonic()
    return left_s > 0


def _envelopes(queue: str, task: str, messages: Iterable[bytes]) -> Iterator[Any]:
    """Yield the envelopes in messages of one task; others are refused."""

    def problem(_: str, name: str, arguments: list[Any], named: dict[str, Any]) -> str:
        if name != task or len(arguments) != 1 or named:
            return f"not a message of a node: {name} with wrong arguments or in the wrong queue"
        return ""

    for raw in messages:
        try:
            yield read(raw, queue, problem).arguments[0]
        except Unreadable as error:
            refuse(queue, str(error), size=len(raw), sample=raw)


def is_idle(url: str) -> bool:
    """Return whether nothing waits for a worker."""
    pipeline = client(url).pipeline(transaction=False)
    for queue in (INGEST_QUEUE, BACKLOG_QUEUE, CONTROL_QUEUE):
        pipeline.llen(queue)
    return not any(pipeline.execute())


def post(url: str, messages: list[tuple[str, str, Any]]) -> None:
    """Put messages for nodes into queues, each (queue, task, argument), with one round trip.

    A queue that nobody reads, as that of a state directory that is gone, ends when its newest message is too old.
    """
    pipeline = client(url).pipeline(transaction=False)
    for queue, task, argument in messages:
        pipeline.lpush(queue, message(queue, task, argument))
    for queue in {queue for queue, _, _ in messages}:
        pipeline.expire(queue, int(LIFETIME_S))
    pipeline.execute()


@cache
def client(url: str) -> redis.Redis:
    """Return the connections of this process to Redis."""
    return redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=2)
