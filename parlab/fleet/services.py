"""Bring runs to nodes and keep track of both; `docs/server-node.md` has the whole contract."""

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
"""A dispatched attempt that nobody reports running is sent again after this long."""
CANCELLED = "cancelled by a person"
_RUNS_A_ROUND = 500
AWAKE_KEY = "parlab:reaper:awake_since"
_AWAKE_TIMEOUT_S = 15
"""A reaper that missed this much (three beats) has slept."""


def launch(*, config: Config, user: User) -> Launch:
    """Queue a run for every point that has none, and send what nodes have room for."""
    result = lab.config_launch(config=config, user=user)
    transaction.on_commit(dispatch, robust=True)
    return result


def relaunch(*, run: Run, user: User) -> Attempt:
    """Queue the next attempt of a run that has ended."""
    attempt = lab.run_relaunch(run=run, user=user)
    transaction.on_commit(dispatch, robust=True)
    return attempt


def cancel(*, run: Run) -> RunState:
    """Cancel a waiting run at once, or ask its node to stop it; returns the state that the run then has."""
    state = lab.run_cancel_request(run=run)
    if not state.is_final:
        run = Run.objects.get(pk=run.pk)
        attempt = run.attempts.select_related("node").get(number=run.attempt_number)
        transaction.on_commit(lambda: _send_cancel(attempt), robust=True)
    return state


def dispatch() -> int:
    """Give queued runs to nodes with room and send what no node confirmed again; returns how many were sent."""
    now = timezone.now()
    chosen = _assign_queued(now) + _claim_unconfirmed(now)
    transaction.on_commit(lambda: _send_orders(chosen), robust=True)
    return len(chosen)


def _assign_queued(now: datetime) -> list[int]:
    """Move queued attempts to nodes with room; returns their ids."""
    queued = Run.objects.filter(state=RunState.QUEUED).order_by("queued_at", "pk")
    if not queued.exists():
        return []
    with transaction.atomic():
        # Two dispatchers must not count the same free slot: the nodes are what they wait for each other at.
        nodes = Node.objects.online().filter(is_enabled=True).order_by("pk").select_for_update(no_key=True)
        free = [room for room in rooms(nodes) if room.slots > 0]
        chosen = []
        for run in _candidates(queued, free) if free else []:
            need = Need.of(run.resolved["cluster"])
            room = best(free, need)
            if room is None:
                continue
            attempt_id = _give(run, room.node, now)
            if attempt_id:
                room.take(need)
                chosen.append(attempt_id)
        return chosen


def _candidates(queued: QuerySet[Run], free: list[Room]) -> QuerySet[Run]:
    """Leave out runs that no free node can take, so that they hold up nobody behind them."""
    most_gpus = max(room.gpus for room in free)
    need_gpus = [row.name for row in DEVICES.values() if row.needs_gpus]
    fitting = ~Q(resolved__cluster__device__in=need_gpus) | Q(resolved__cluster__gpus_per_node__lte=most_gpus)
    in_pools = queued.filter(resolved__cluster__pool__in={room.node.pool for room in free})
    return in_pools.filter(fitting).only("resolved", "attempt_number")[:_RUNS_A_ROUND]


def _give(run: Run, node: Node, now: datetime) -> int | None:
    """Give the queued attempt of a run to a node; None when somebody was faster, or cancelled it."""
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
    """Pick attempts whose start was sent a while ago and that no node reports; only one caller gets each."""
    stale = Attempt.objects.filter(state=RunState.DISPATCHED, dispatched_at__lt=now - timedelta(seconds=RESEND_S))
    return [
        pk
        for pk, sent_at in stale.values_list("pk", "dispatched_at")
        if Attempt.objects.filter(pk=pk, state=RunState.DISPATCHED, dispatched_at=sent_at).update(dispatched_at=now)
    ]


def _send_orders(attempt_ids: list[int]) -> None:
    """Tell nodes to start what they were given, or to leave it alone where somebody has cancelled it since."""
    attempts = Attempt.objects.filter(pk__in=attempt_ids, state=RunState.DISPATCHED).select_related("run", "node")
    for attempt in attempts.order_by("pk"):
        if not (_send_cancel(attempt) if attempt.run.cancel_requested_at else send_start(attempt)):
            return  # Redis is away; the beat sends all of them again


def _send_cancel(attempt: Attempt) -> bool:
    if attempt.node is None:
        return True
    return send_cancel(run=attempt.run_id, attempt=attempt.number, node=attempt.node.name, reason=CANCELLED)


def heartbeat(*, message: Heartbeat) -> None:
    """Note that a node lives, renew the leases of what it holds, and stop what it should not hold."""
    age = time.time() - message.sent_at
    if age > SPEC_LIFETIME_S:
        logger.warning("heartbeat of node %s is %.0f s old and ignored; check its clock", message.node, age)
        return
    now = timezone.now()
    node = _register(message, now)
    attempts = Attempt.objects.filter(run_id__in={held.run for held in message.held if 0 < held.run < 2**63})
    known = {(attempt.run_id, attempt.number): attempt for attempt in attempts.select_related("run")}
    held = [(one, known.get((one.run, one.attempt))) for one in message.held]
    # Leases first: a broker that is away must not cost a run that is alive.
    renewed = [attempt.pk for _, attempt in held if attempt is not None and attempt.node_id == node.pk]
    Attempt.objects.filter(pk__in=renewed, state__in=ON_NODE).update(lease_expires_at=now + timedelta(seconds=LEASE_S))
    for one, attempt in held:
        reason = _why_stop(attempt, node, message.sent_at)
        if one.alive and reason:
            send_cancel(run=one.run, attempt=one.attempt, node=node.name, reason=reason)


def _why_stop(attempt: Attempt | None, node: Node, sent_at: float) -> str:
    """Why a node must not go on with an attempt; an empty text where it may."""
    if attempt is None:
        return "the server does not know this run any more"
    if attempt.state in ON_NODE and attempt.node_id == node.pk:
        return CANCELLED if attempt.run.cancel_requested_at else ""
    # A run that has just ended by itself is still named alive in heartbeats that were under way.
    if attempt.ended_at is not None and sent_at < attempt.ended_at.timestamp() + 2 * HEARTBEAT_S:
        return ""
    return "the server has given this attempt up"


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
            logger.info("node %s of pool %s has registered", message.node, message.pool)
    return Node.objects.get(name=message.node)


def reap() -> int:
    """Give up attempts whose lease ran out; returns how many.

    After a pause of its own the reaper first waits for as long as a lease lasts: nobody renewed any
    while the server was down.
    """
    if _awake_s() < LEASE_S:
        return 0
    expired = Attempt.objects.filter(state__in=ON_NODE, lease_expires_at__lt=timezone.now())
    return sum(_lose_if_expired(attempt) for attempt in expired)


def _lose_if_expired(attempt: Attempt) -> bool:
    with transaction.atomic():
        now = timezone.now()
        # A heartbeat may have come in between.
        expired = Attempt.objects.select_for_update(no_key=True).filter(pk=attempt.pk, lease_expires_at__lt=now)
        locked = expired.first()
        if locked is None:
            return False
        return lab.attempt_lose(attempt=locked, reason=_why_lost(locked, now))


def _why_lost(attempt: Attempt, now: datetime) -> str:
    node = attempt.node
    if node is None:
        return "given to no node"
    if not node.is_online and node.last_heartbeat_at is not None:
        silence_s = (now - node.last_heartbeat_at).total_seconds()
        return f"node {node.name} has been silent for {silence_s:.0f} s; look at its daemon and its network"
    if attempt.state == RunState.DISPATCHED:
        return f"node {node.name} did not take the run within {LEASE_S:.0f} s; look at its daemon's log"
    return f"node {node.name} lives but has not named this run for {LEASE_S:.0f} s; look at its daemon's log"


def _awake_s() -> float:
    """How long the reaper has been called without a pause, in seconds."""
    now = time.time()
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5, decode_responses=True) as client:
        client.set(AWAKE_KEY, now, nx=True, ex=_AWAKE_TIMEOUT_S)
        client.expire(AWAKE_KEY, _AWAKE_TIMEOUT_S)
        since = client.get(AWAKE_KEY)
    return now - float(str(since)) if since else 0.0
