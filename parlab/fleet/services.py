"""Dispatch runs to nodes and track both; see `docs/server-node.md` for the protocol."""

import logging
import time
from datetime import datetime, timedelta

import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from parlab.lab import services as lab
from parlab.lab.models import Attempt, Config, Node, Run
from parlab.lab.services import Launch, storable
from runners.config.devices import DEVICES
from runners.protocol import HEARTBEAT_S, LEASE_S, SPEC_LIFETIME_S, Heartbeat, RunState

from .capacity import ON_NODE, Need, Room, best, rooms
from .messages import send_cancel, send_start
from .waiting import waiting_reason, waiting_reasons

__all__ = [
    "cancel",
    "dispatch",
    "heartbeat",
    "launch",
    "reap",
    "relaunch",
    "waiting_reason",
    "waiting_reasons",
]

logger = logging.getLogger(__name__)

RESEND_S = 5.0
"""Seconds after which a dispatched attempt that no node reports as running is sent again."""
CANCELLED = "cancelled by a person"
_RUNS_A_ROUND = 500
AWAKE_KEY = "parlab:reaper:awake_since"
_AWAKE_TIMEOUT_S = 15
"""A reaper that was not called for this long (three beats) starts its waiting time again."""


def launch(*, config: Config, user: User) -> Launch:
    """Queue a run for every point that has none, and dispatch as many as nodes have free slots for."""
    result = lab.config_launch(config=config, user=user)
    transaction.on_commit(dispatch, robust=True)
    return result


def relaunch(*, run: Run, user: User) -> Attempt:
    """Queue the next attempt of a run that has ended."""
    attempt = lab.run_relaunch(run=run, user=user)
    transaction.on_commit(dispatch, robust=True)
    return attempt


def cancel(*, run: Run) -> RunState:
    """Cancel a queued run at once, or ask its node to stop it; return the new state of the run."""
    state = lab.run_cancel_request(run=run)
    if not state.is_final:
        run = Run.objects.get(pk=run.pk)
        attempt = run.attempts.select_related("node").get(number=run.attempt_number)
        transaction.on_commit(lambda: _send_cancel(attempt), robust=True)
    return state


def dispatch() -> int:
    """Assign queued runs to nodes with free slots, and resend unconfirmed ones; return the number of orders sent."""
    now = timezone.now()
    chosen = _assign_queued(now) + _claim_unconfirmed(now)
    transaction.on_commit(lambda: _send_orders(chosen), robust=True)
    return len(chosen)


def _assign_queued(now: datetime) -> list[int]:
    """Assign queued attempts to nodes with free slots; return their ids."""
    queued = Run.objects.filter(state=RunState.QUEUED).order_by("queued_at", "pk")
    if not queued.exists():
        return []
    with transaction.atomic():
        # Locks the nodes, so that two dispatchers never count the same free slot.
        nodes = Node.objects.online().filter(is_enabled=True).order_by("pk").select_for_update(no_key=True)
        free = [room for room in rooms(nodes) if room.slots > 0]
        chosen = []
        for run in _candidates(queued, free) if free else []:
            need = Need.of(run.resolved["cluster"])
            room = best(free, need)
            if room is None:
                continue
            attempt_id = _assign(run, room.node, now)
            if attempt_id:
                room.take(need)
                chosen.append(attempt_id)
        return chosen


def _candidates(queued: QuerySet[Run], free: list[Room]) -> QuerySet[Run]:
    """Exclude runs that no free node can take, to avoid head-of-line blocking."""
    most_gpus = max(room.gpus for room in free)
    need_gpus = [row.name for row in DEVICES.values() if row.needs_gpus]
    fitting = ~Q(resolved__cluster__device__in=need_gpus) | Q(resolved__cluster__gpus_per_node__lte=most_gpus)
    in_pools = queued.filter(resolved__cluster__pool__in={room.node.pool for room in free})
    return in_pools.filter(fitting).only("resolved", "attempt_number")[:_RUNS_A_ROUND]


def _assign(run: Run, node: Node, now: datetime) -> int | None:
    """Assign the queued attempt of a run to a node; return None if it was assigned or cancelled in the meantime."""
    attempt_id = run.attempts.values_list("pk", flat=True).get(number=run.attempt_number)
    taken = Attempt.objects.filter(pk=attempt_id, state=RunState.QUEUED).update(
        state=RunState.DISPATCHED,
        node=node,
        dispatched_at=now,
        lease_expires_at=now + timedelta(seconds=LEASE_S),
    )
    if not taken:
        return None
    Run.objects.filter(pk=run.pk, attempt_number=run.attempt_number).update(state=RunState.DISPATCHED)
    return attempt_id


def _claim_unconfirmed(now: datetime) -> list[int]:
    """Return attempts whose start order was sent a while ago and that no node reports; each goes to one caller only."""
    stale = Attempt.objects.filter(state=RunState.DISPATCHED, dispatched_at__lt=now - timedelta(seconds=RESEND_S))
    return [
        pk
        for pk, sent_at in stale.values_list("pk", "dispatched_at")
        if Attempt.objects.filter(pk=pk, state=RunState.DISPATCHED, dispatched_at=sent_at).update(dispatched_at=now)
    ]


def _send_orders(attempt_ids: list[int]) -> None:
    """Send nodes the orders to start their attempts, or to cancel those that were cancelled in the meantime."""
    attempts = Attempt.objects.filter(pk__in=attempt_ids, state=RunState.DISPATCHED).select_related("run", "node")
    for attempt in attempts.order_by("pk"):
        if not (_send_cancel(attempt) if attempt.run.cancel_requested_at else send_start(attempt)):
            return  # Redis is unavailable; the next beat sends all of them again


def _send_cancel(attempt: Attempt) -> bool:
    if attempt.node is None:
        return True
    return send_cancel(run=attempt.run_id, attempt=attempt.number, node=attempt.node.name, reason=CANCELLED)


def heartbeat(*, message: Heartbeat) -> None:
    """Record a heartbeat: renew the leases of the attempts that the node holds, and stop those that it should not."""
    age = time.time() - message.sent_at
    if age > SPEC_LIFETIME_S:
        logger.warning(
            "heartbeat of node %s is %.0f s old and was ignored; check the clock of the node", message.node, age
        )
        return
    now = timezone.now()
    node = _register(message, now)
    attempts = Attempt.objects.filter(run_id__in={held.run for held in message.held if 0 < held.run < 2**63})
    by_key = {(attempt.run_id, attempt.number): attempt for attempt in attempts.select_related("run")}
    pairs = [(held, by_key.get((held.run, held.attempt))) for held in message.held]
    # Leases first: without a broker, a running attempt must still keep its lease.
    renewed = [attempt.pk for _, attempt in pairs if attempt is not None and attempt.node_id == node.pk]
    Attempt.objects.filter(pk__in=renewed, state__in=ON_NODE).update(lease_expires_at=now + timedelta(seconds=LEASE_S))
    for held, attempt in pairs:
        reason = _stop_reason(attempt, node, message.sent_at)
        if held.alive and reason:
            send_cancel(run=held.run, attempt=held.attempt, node=node.name, reason=reason)


def _stop_reason(attempt: Attempt | None, node: Node, sent_at: float) -> str:
    """Return why a node must stop an attempt; empty if it may continue."""
    if attempt is None:
        return "the server no longer has this run"
    if attempt.state in ON_NODE and attempt.node_id == node.pk:
        return CANCELLED if attempt.run.cancel_requested_at else ""
    # Heartbeats sent before the end of a run still name it as alive.
    if attempt.ended_at is not None and sent_at < attempt.ended_at.timestamp() + 2 * HEARTBEAT_S:
        return ""
    return "the server has given up this attempt"


def _register(message: Heartbeat, now: datetime) -> Node:
    facts = {
        "pool": message.pool,
        "slots": message.slots,
        "daemon_version": message.version[:40],
        "hardware": storable.json(message.hardware),
        "last_heartbeat_at": now,
    }
    if not Node.objects.filter(name=message.node).update(**facts):
        _, created = Node.objects.get_or_create(name=message.node, defaults=facts)
        if created:
            logger.info("node %s of pool %s registered", message.node, message.pool)
    return Node.objects.get(name=message.node)


def reap() -> int:
    """Mark attempts whose lease expired as lost; return their number.

    After a pause of its own the reaper first waits for the duration of a lease, because no lease was renewed while the
    server was down.
    """
    if _uptime_s() < LEASE_S:
        return 0
    expired = Attempt.objects.filter(state__in=ON_NODE, lease_expires_at__lt=timezone.now())
    return sum(_lose_if_expired(attempt) for attempt in expired)


def _lose_if_expired(attempt: Attempt) -> bool:
    with transaction.atomic():
        now = timezone.now()
        # A heartbeat may have renewed the lease in the meantime.
        expired = Attempt.objects.select_for_update(no_key=True).filter(pk=attempt.pk, lease_expires_at__lt=now)
        locked = expired.first()
        if locked is None:
            return False
        return lab.attempt_lose(attempt=locked, reason=_loss_reason(locked, now))


def _loss_reason(attempt: Attempt, now: datetime) -> str:
    node = attempt.node
    if node is None:
        return "assigned to no node"
    if not node.is_online and node.last_heartbeat_at is not None:
        silence_s = (now - node.last_heartbeat_at).total_seconds()
        return f"node {node.name} has sent no heartbeat for {silence_s:.0f} s; check its daemon and its network"
    if attempt.state == RunState.DISPATCHED:
        return f"node {node.name} did not start the run within {LEASE_S:.0f} s; see the log of its daemon"
    return f"node {node.name} is online but has not reported this run for {LEASE_S:.0f} s; see the log of its daemon"


def _uptime_s() -> float:
    """Return for how many seconds the reaper has been called without a pause."""
    now = time.time()
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5, decode_responses=True) as client:
        client.set(AWAKE_KEY, now, nx=True, ex=_AWAKE_TIMEOUT_S)
        client.expire(AWAKE_KEY, _AWAKE_TIMEOUT_S)
        since = client.get(AWAKE_KEY)
    return now - float(str(since)) if since else 0.0
