"""The node's Celery application: it listens on the node's queue and sends to the server's queues."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from celery import Celery
from celery.worker import state as worker_state
from kombu import Connection, Queue
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from runners.supervisor.shipping import BrokerAway, Outgoing
from runners.wire.message_filter import Unreadable, guarded, message, read, take_next
from runners.wire.protocol import (
    ACKNOWLEDGE_TASK,
    APPLY_BATCH_TASK,
    BACKLOG_QUEUE,
    CANCEL_TASK,
    CONTROL_QUEUE,
    ENROL_TASK,
    GO_TASK,
    HEARTBEAT_TASK,
    INGEST_QUEUE,
    ROTATE_TASK,
    START_TASK,
    Acknowledge,
    Enrol,
    Heartbeat,
    Refused,
    answer_key,
    enrolled_key,
    login_key,
    node_queue,
    verify,
)
from runners.wire.refusals import Refusals
from runners.wire.trust import LIFETIME_S, Key, Untrusted, open_envelope, seal

CONTROL_QUEUE_LIMIT = 10_000
"""Limit of unread heartbeats, so that they do not fill Redis while the server is down."""

BACKLOG_LIMIT = 32
"""Limit of unread batches of the backlog, about 10 MiB, so that neither Redis nor live batches suffer from it."""
MAX_ACKNOWLEDGED = 256
"""Acknowledgements that are taken at once."""
MAX_SENT_REFUSALS = 20
"""Refused messages in one heartbeat, by reason."""
_ARGUMENTS = {START_TASK: {1}, GO_TASK: {1}, CANCEL_TASK: {1}, ACKNOWLEDGE_TASK: {1}, ROTATE_TASK: {1}}

log = logging.getLogger(__name__)


class Orders(Protocol):
    """Executes the orders of the server."""

    def start(self, envelope: Any) -> None:
        """Start a run."""

    def go(self, envelope: Any) -> None:
        """Start the ranks of a prepared run."""

    def cancel(self, envelope: Any) -> None:
        """Cancel a run."""

    def acknowledge(self, envelope: Any) -> None:
        """Record the position up to which the server has stored a spool."""

    def rotate(self, envelope: Any) -> None:
        """Agree on the next key of the node."""


class Keys(Protocol):
    """The keys of a node, which signs its messages with the current one."""

    def current(self) -> Key:
        """Return the key that signs; raises Untrusted if there is none."""

    def find(self, node: str, key_id: str) -> bytes:
        """Return the secret of a key; raises Untrusted."""


class QuickConnection(Connection):
    """A connection that is retried at least every two seconds; kombu waits up to half a minute."""

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect, retrying without limit."""
        return super().ensure_connection(*args, **{**kwargs, "interval_start": 0.5, "interval_max": 2})


class Broker:
    """One node's connection to the server."""

    def __init__(self, url: str, node: str, keys: Keys | None = None, *, state_id: str = "") -> None:
        """Without keys nothing can be sent to the server; a daemon also reads the queue of its state directory."""
        self._node = node
        # The server sends to the first: another daemon with the name of this node must not take its orders.
        self._queues = [*([node_queue(node, state_id)] if state_id else []), node_queue(node)]
        self._keys = keys
        self._number = 0
        self._number_lock = threading.Lock()
        self._redis_ahead_s: float | None = None
        self.refusals = Refusals(log)
        # Without fixups Celery does not look for Django, which a node need not have.
        self.app = Celery("parlab-node", broker=url, set_as_current=False, fixups=[])
        self.app.amqp.Connection = guarded(_problem, self._refuse, QuickConnection)
        self.app.conf.update(
            accept_content=["json"],
            task_serializer="json",
            task_ignore_result=True,
            # A run must never start twice because the broker redelivers a message.
            task_acks_late=False,
            task_queues=[Queue(name) for name in self._queues],
            task_default_queue=node_queue(node),
            task_publish_retry=False,
            # No limit: if Redis fails during an acknowledgement, Celery only logs it and counts the message as in
            # progress forever; a worker with a limit would then wait silently. Orders are executed one by one as
            # they arrive, so nothing accumulates here.
            worker_prefetch_multiplier=0,
            worker_hijack_root_logger=False,
            worker_enable_remote_control=False,
            broker_connection_retry_on_startup=True,
            broker_connection_max_retries=None,
            # Otherwise the daemon ends when Redis refuses a write, as it does while its disk is full.
            broker_channel_error_retry=True,
            # While Redis is unavailable sending fails at once; the sender retries.
            broker_transport_options={
                "socket_connect_timeout": 2,
                "socket_timeout": 10,
                "max_retries": 1,
                "interval_start": 0,
                "interval_step": 0.1,
                "interval_max": 0.1,
            },
        )

    def send_batches(self, batches: Sequence[Outgoing]) -> None:
        """Send batches to the server in one round trip; if this raises BrokerAway, some may have been sent."""
        at = self._redis_time()
        # They may wait for the server for hours; their position in the spool is their order.
        sealed = [(batch.queue, self._sealed("batch", batch.wire, at, lifetime_s=None)) for batch in batches]
        messages = [(queue, message(queue, APPLY_BATCH_TASK, envelope)) for queue, envelope in sealed]

        def push(client: Any) -> None:
            pipeline = client.pipeline(transaction=False)
            for queue, raw in messages:
                pipeline.lpush(queue, raw)
            pipeline.execute()

        self._ask(push)

    def send_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Send a heartbeat, or raise BrokerAway."""
        if self._length(CONTROL_QUEUE) < CONTROL_QUEUE_LIMIT:
            content = heartbeat.model_dump(mode="json")
            self._send(HEARTBEAT_TASK, self._sealed("heartbeat", content, self.server_time()), CONTROL_QUEUE)

    def send_enrol(self, enrol: Enrol, key: Key | None = None) -> None:
        """Send the node's part of an agreement on a key, signed with its current key or another one."""
        content = enrol.model_dump(mode="json")
        envelope = self._sealed("enrol", content) if key is None else seal("enrol", self._node, content, key)
        self._send(ENROL_TASK, envelope, CONTROL_QUEUE)

    def enrolled(self, key_id: str, public: str, key: Key) -> str | None:
        """Return the server's public value once it has answered this one; raises Untrusted, BrokerAway."""
        answer = self._ask(lambda client: client.get(enrolled_key(key_id)))
        if answer is None:
            return None
        opened = open_envelope(_envelope(answer), "enrolled", lambda *_: key.secret)
        if opened.content["answers"] != public:
            return None
        if "refused" in opened.content:
            raise Untrusted(str(opened.content["refused"]))
        return str(opened.content["public"])

    def take_refused(self) -> list[Refused]:
        """Return the messages in the node's queue that were refused, for the next heartbeat."""
        return self.refusals.take(MAX_SENT_REFUSALS)

    def queue_age_s(self, *, is_backlog: bool = False) -> float:
        """Return the age of the oldest batch that waits for the server (s), 0 without one, or raise BrokerAway."""
        queue = BACKLOG_QUEUE if is_backlog else INGEST_QUEUE
        oldest = self._ask(lambda client: client.lindex(queue, -1))
        if oldest is None:
            return 0.0
        try:
            envelope = read(oldest, queue, _no_check).arguments[0]
            number = float(json.loads(envelope["payload"])["number"])
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
            return 0.0  # the server refuses it
        return self.server_time() - number / 1e6

    def backlog_room(self) -> int:
        """Return how many batches the backlog may take now, or raise BrokerAway; the rest stays in the spools."""
        return max(0, BACKLOG_LIMIT - self._length(BACKLOG_QUEUE))

    def answer(self, run: int, attempt: int, node_rank: int) -> str | None:
        """Return the last answer to a polled batch, or raise BrokerAway; None if there is none."""
        answer = self._ask(lambda client: client.get(answer_key(run, attempt, node_rank)))
        stored = self._answer_of((run, attempt, node_rank), answer)
        return f"{stored.position} {hash(answer)}" if stored else None

    def _answer_of(self, member: tuple[int, int, int], answer: bytes | None) -> Acknowledge | None:
        """Return an answer in Redis, if it is genuine and meant for this member."""
        if answer is None or self._keys is None:
            return None
        try:
            stored = verify(_envelope(answer), self._keys.find, Acknowledge, node=self._node)
        except Untrusted as error:
            self.refusals.add(answer_key(*member), str(error), size=len(answer), sample=answer)
            return None
        return stored if (stored.run, stored.attempt, stored.node_rank) == member else None

    def posted(self, members: Sequence[tuple[int, int, int]]) -> list[Acknowledge]:
        """Return the last answers to pods (run, attempt, node_rank) that post their batches, or raise BrokerAway."""
        keys = [answer_key(*member) for member in members]
        answers = self._ask(lambda client: client.mget(keys)) if keys else []
        found = [self._answer_of(member, answer) for member, answer in zip(members, answers, strict=True)]
        return [answer for answer in found if answer is not None]

    def mark_login(self, state_id: str) -> None:
        """Let compute nodes recognise this Redis, or raise BrokerAway."""
        self._ask(lambda client: client.set(login_key(state_id), self._node))

    def listen(self, orders: Orders) -> None:
        """Execute orders from the node's queue until `stop`."""

        def acknowledge(envelope: Any) -> None:
            self._acknowledge(orders, envelope)

        self.app.task(name=START_TASK)(orders.start)
        self.app.task(name=GO_TASK)(orders.go)
        self.app.task(name=CANCEL_TASK)(orders.cancel)
        self.app.task(name=ACKNOWLEDGE_TASK)(acknowledge)
        self.app.task(name=ROTATE_TASK)(orders.rotate)
        # The plain controller leaves signals and logging to the daemon.
        worker = self.app.WorkController(
            hostname=f"parlab@{self._node}",
            pool_cls="solo",
            concurrency=1,
            queues=self._queues,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        worker.start()

    def _acknowledge(self, orders: Orders, envelope: Any) -> None:
        """Execute an acknowledgement, and those that wait behind it: a node with many runs gets hundreds a second."""
        orders.acknowledge(envelope)
        queue = self._queues[0]
        try:
            waiting = self._ask(lambda client: take_next(client, queue, ACKNOWLEDGE_TASK, MAX_ACKNOWLEDGED))
        except BrokerAway:
            return  # Celery waits for it
        for raw in waiting:
            try:
                orders.acknowledge(read(raw, queue, _problem).arguments[0])
            except Unreadable as error:
                self._refuse(queue, str(error), raw)

    def stop(self) -> None:
        """Make `listen` return soon; may be called in a signal handler."""
        worker_state.should_stop = 0  # type: ignore[assignment]  # the exit code

    def _sealed(
        self, purpose: str, content: dict[str, Any], at: float | None = None, *, lifetime_s: float | None = LIFETIME_S
    ) -> dict[str, Any]:
        """Return the envelope of a message to the server.

        Its number is the time of Redis (microseconds); numbers rise, also when a clock jumps.
        """
        if self._keys is None:
            raise RuntimeError(f"node {self._node} has no keys to sign a {purpose}")
        with self._number_lock:
            self._number = max(self._number + 1, int((at or 0.0) * 1e6))
            number = self._number
        return seal(purpose, self._node, content, self._keys.current(), number=number, lifetime_s=lifetime_s)

    def _refuse(self, queue: str, reason: str, raw: bytes) -> None:
        self.refusals.add(queue, reason, size=len(raw), sample=raw)

    def _send(self, task: str, argument: dict[str, Any], queue: str) -> None:
        try:
            self.app.send_task(task, args=[argument], queue=queue)
        except (KombuError, RedisError, OSError) as error:
            raise BrokerAway(str(error)) from error

    def server_time(self) -> float:
        """Return the Unix time of the server's Redis, or raise BrokerAway."""
        seconds, microseconds = self._ask(lambda client: client.time())
        now = float(seconds) + float(microseconds) / 1e6
        self._redis_ahead_s = now - time.monotonic()
        return now

    def _redis_time(self) -> float:
        """Return the time of Redis as of when it was last asked, which a daemon does with each heartbeat."""
        if self._redis_ahead_s is None:
            return self.server_time()
        return self._redis_ahead_s + time.monotonic()

    def _length(self, queue: str) -> int:
        return int(self._ask(lambda client: client.llen(queue)))

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """Return the answer of Redis, or raise BrokerAway."""
        try:
            # The stubs declare the pool of connections as one of producers.
            pool: Any = self.app.pool
            with pool.acquire(block=True) as connection:
                return question(connection.default_channel.client)
        except (KombuError, RedisError, OSError) as error:
            raise BrokerAway(str(error)) from error


def _problem(_: str, task: str, arguments: list[Any], named: dict[str, Any]) -> str:
    """Return why an order is refused before its signature is checked; empty if it is not."""
    if task not in _ARGUMENTS:
        return "not an order for nodes"
    if len(arguments) not in _ARGUMENTS[task] or named:
        return "wrong arguments of an order"
    return ""


def _no_check(*_: Any) -> str:
    return ""


def _envelope(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise Untrusted("an answer in Redis is not JSON") from error
