"""Dispatch runs to nodes and track both; see `docs/understand/server-node.md` for the protocol."""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType

import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F

from parlab.ingest.batches import orders
from parlab.ingest.batches.clock import shared_now
from parlab.lab.models import ACTIVE_MEMBER_STATES, Attempt, Config, Member, MemberState, Node, Run
from parlab.lab.models.access.viewer import viewing
from parlab.lab.services import storable
from parlab.lab.services.access.projects import in_open_pools
from parlab.lab.services.access.refused import refused_store
from parlab.lab.services.approvals import may_start
from parlab.lab.services.attempts import lock_attempt
from parlab.lab.services.chains import run_chain_end
from parlab.lab.services.events import node_lost, nodes_back
from parlab.lab.services.members import attempt_lose, lock_members
from parlab.lab.services.runs import Launch, config_launch, run_cancel_request, run_relaunch
from runners.wire.protocol import (
    HEARTBEAT_S,
    LEASE_S,
    SPEC_LIFETIME_S,
    Cancel,
    Heartbeat,
    HeldRun,
    RunState,
    node_queue,
)

from .bad_nodes import attempts_judge, exclusions_expire, nodes_judge
from .capacity import rooms
from .differences import node_differences
from .placement import candidates, placements
from .registration import register
from .waiting import waiting_reason, waiting_reasons

__all__ = [
    "cancel",
    "dispatch",
    "end_chain",
    "heartbeats",
    "launch",
    "reap",
    "relaunch",
    "waiting_reason",
    "waiting_reasons",
]

logger = logging.getLogger(__name__)

RESEND_S = 5.0
"""Seconds after which an order that a node has not carried out is sent again."""
_ORDERS_AT_ONCE = 200
AWAKE_KEY = "parlab:reaper:awake_since"
_SILENCE = timedelta(seconds=LEASE_S)
_NEWS = timedelta(minutes=10)
"""A node that has been silent for longer was announced, or fell silent while the server was down."""
_AWAKE_TIMEOUT_S = 15
"""A reaper that was not called for this long (three beats) starts its waiting time again."""


def launch(*, config: Config, user: User) -> Launch:
    """Queue a run for every point that has none, and dispatch as many as nodes have free slots for."""
    result = config_launch(config=config, user=user)
    transaction.on_commit(dispatch, robust=True)
    return result


def relaunch(*, run: Run, user: User) -> Attempt:
    """Queue the next attempt of a run that has ended."""
    attempt = run_relaunch(run=run, user=user)
    transaction.on_commit(dispatch, robust=True)
    return attempt


def cancel(*, run: Run) -> RunState:
    """Cancel a queued run at once, or ask its node to stop it; return the new state of the run."""
    state = run_cancel_request(run=run)
    if not state.is_final:
        attempt = Run.objects.get(pk=run.pk).current_attempt()
        transaction.on_commit(lambda: orders.follow([attempt.pk]), robust=True)
    return state


def end_chain(*, run: Run) -> Run:
    """End the chain of a run after its current attempt; a job that waits for the next one is cancelled."""
    ended = run_chain_end(run=run)
    attempt = Run.objects.get(pk=run.pk).current_attempt()
    transaction.on_commit(lambda: orders.drop_next(attempt.pk), robust=True)
    return ended


@viewing(None)
def dispatch() -> int:
    """Assign queued runs to nodes, and repeat orders that no node has carried out; return the number of orders sent."""
    now = shared_now()
    chosen = _assign_queued(now) + _claim_unconfirmed(now)
    transaction.on_commit(lambda: _send_orders(chosen), robust=True)
    return len(chosen)


def _assign_queued(now: datetime) -> list[int]:
    """Assign queued attempts to free nodes, each to all of its nodes or none; return the ids of their members."""
    queued = Run.objects.filter(state=RunState.QUEUED).order_by("queued_at", "pk")
    if not queued.exists():
        return []
    with transaction.atomic():
        # Locks the nodes, so that two dispatchers never count the same free slot.
        nodes = Node.objects.online().filter(is_enabled=True, is_draining=False).order_by("pk")
        online = rooms(nodes.select_for_update(no_key=True))
        if not any(room.slots > 0 for room in online):
            return []
        if attempts_judge():  # a node that has just ended its third attempt must not get the next one
            online = rooms(nodes.all())
        placed = placements(candidates(queued.filter(in_open_pools(), may_start()), online, now), online, now)
        return _assign([(run, [room.node for room in places]) for run, places in placed], now)


def _assign(places: Sequence[tuple[Run, list[Node]]], now: datetime) -> list[int]:
    """Assign the queued attempts of runs to nodes, except those assigned or cancelled in the meantime.

    The number of statements does not depend on the number of runs.
    """
    current = Attempt.objects.filter(run__in=[run.pk for run, _ in places], number=F("run__attempt_number"))
    still_queued = current.filter(state=RunState.QUEUED).order_by("pk").select_for_update(of=("self",), no_key=True)
    attempts = {attempt.run_id: attempt.pk for attempt in still_queued.only("run_id")} if places else {}
    if not attempts:
        return []
    Attempt.objects.filter(pk__in=attempts.values()).update(state=RunState.DISPATCHED)
    Run.objects.filter(pk__in=attempts).update(state=RunState.DISPATCHED)
    members = [
        Member(
            attempt_id=attempts[run.pk],
            node_rank=node_rank,
            node=node,
            clock_offset_s=node.clock_offset_s,
            assigned_at=now,
            dispatched_at=now,
            lease_expires_at=now + node.lease,
        )
        for run, nodes in places
        if run.pk in attempts
        for node_rank, node in enumerate(nodes)
    ]
    for run, nodes in places:
        if len(nodes) > 1 and run.pk in attempts:
            for difference in node_differences(nodes):
                logger.warning("run %s: %s", run.pk, difference)
    return [member.pk for member in Member.objects.bulk_create(members)]


def _claim_unconfirmed(now: datetime) -> list[int]:
    """Return members whose order was sent a while ago and not carried out; each goes to one caller only."""
    waiting = Member.objects.filter(state__in=[MemberState.DISPATCHED, MemberState.PREPARED])
    stale = waiting.filter(dispatched_at__lt=now - timedelta(seconds=RESEND_S))
    if not stale.exists():
        return []
    with transaction.atomic():
        # In the order in which workers lock the members of batches.
        locked = stale.order_by("attempt_id", "node_rank").select_for_update(no_key=True)
        members = list(locked.values_list("pk", flat=True))
        Member.objects.filter(pk__in=members).update(dispatched_at=now)
    return members


def _send_orders(member_ids: list[int]) -> None:
    """Send members the orders that they are due."""
    # SQLite refuses the query for the members of a thousand attempts.
    for first in range(0, len(member_ids), _ORDERS_AT_ONCE):
        chosen = set(member_ids[first : first + _ORDERS_AT_ONCE])
        attempts = Attempt.objects.filter(members__in=chosen).distinct().select_related("run").with_members()
        due = [
            orders.due_order(attempt, member)
            for attempt in attempts.order_by("pk")
            for member in attempt.members.all()
            if member.pk in chosen
        ]
        orders.send_all([order for order in due if order is not None])


def heartbeats(*, messages: Sequence[Heartbeat], numbers: Mapping[str, int] = MappingProxyType({})) -> None:
    """Record heartbeats of different nodes, with their numbers by node.

    Renews the leases of the attempts that the nodes hold, and stops those that they should not hold. The number of
    statements does not depend on the number of nodes, unless what they say has changed.
    """
    now = shared_now()
    nodes = register([message for message in messages if _is_fresh(message, now)], numbers, now)
    received = [(message, nodes[message.node]) for message in messages if message.node in nodes]
    for message, node in received:
        if message.refused:
            queue = node_queue(node.name)
            refused_store(refused=[refused.model_copy(update={"queue": queue}) for refused in message.refused])
    by_key = _held_attempts([message for message, _ in received])
    shares = [
        (message, held, attempt, _share(attempt, held, node))
        for message, node in received
        for held, attempt in ((held, by_key.get((held.run, held.attempt))) for held in message.held)
    ]
    # Leases first: without a broker, a running attempt must still keep its lease.
    _renew([(member, nodes[message.node]) for message, _, _, member in shares if member is not None], now)
    _note_waiting([(held, member) for _, held, _, member in shares])
    for message, held, attempt, member in shares:
        reason = _stop_reason(attempt, member, message.sent_at)
        if held.alive and reason:
            names = {"run": held.run, "attempt": held.attempt, "node": message.node, "node_rank": held.node_rank}
            is_consequence = member is not None and member.is_active and reason != orders.CANCELLED
            orders.send(Cancel(**names, reason=reason, is_consequence=is_consequence))


def _is_fresh(message: Heartbeat, now: datetime) -> bool:
    age_s = now.timestamp() - message.sent_at
    if age_s > SPEC_LIFETIME_S:
        logger.warning(
            "heartbeat of node %s is %.0f s old and was ignored; check the clock of the node", message.node, age_s
        )
        return False
    return True


def _held_attempts(messages: Sequence[Heartbeat]) -> dict[tuple[int, int], Attempt]:
    """Return the attempts of the runs that nodes hold, by run and number, without what only pages need."""
    runs = {held.run for message in messages for held in message.held if 0 < held.run < 2**63}
    if not runs:
        return {}
    attempts = Attempt.objects.filter(run_id__in=runs).select_related("run").with_members()
    light = attempts.defer("summary", "environment", "run__resolved", "run__summary")
    return {(attempt.run_id, attempt.number): attempt for attempt in light}


def _renew(held: Sequence[tuple[Member, Node]], now: datetime) -> None:
    """Renew the leases of active members on their nodes."""
    if not held:
        return
    leases = {member.pk: node.lease for member, node in held}
    active = Member.objects.filter(pk__in=leases, state__in=ACTIVE_MEMBER_STATES)
    with transaction.atomic():
        # In the order in which workers lock the members of batches.
        locked = active.order_by("attempt_id", "node_rank").select_for_update(of=("self",), no_key=True)
        pks = list(locked.values_list("pk", flat=True))
        for lease in set(leases.values()):
            same = [pk for pk in pks if leases[pk] == lease]
            Member.objects.filter(pk__in=same).update(lease_expires_at=now + lease)


def _note_waiting(shares: Sequence[tuple[HeldRun, Member | None]]) -> None:
    """Record why members wait on their node, for example in the queue of Slurm."""
    for held, member in shares:
        if member is not None and member.member_state is MemberState.DISPATCHED and member.reason != held.waiting:
            waiting = Member.objects.filter(pk=member.pk, state=MemberState.DISPATCHED)
            waiting.update(reason=storable.text(held.waiting))


def _share(attempt: Attempt | None, held: HeldRun, node: Node) -> Member | None:
    """Return the member that a node holds; None if the server has assigned it to another node or to none."""
    members = list(attempt.members.all()) if attempt is not None else []
    return next((each for each in members if each.node_rank == held.node_rank and each.node_id == node.pk), None)


def _stop_reason(attempt: Attempt | None, member: Member | None, sent_at: float) -> str:
    """Return why a node must stop its share of an attempt; empty if it may continue."""
    if attempt is None:
        return "the server no longer has this run"
    if member is not None and member.is_active:
        return orders.stop_reason(attempt, list(attempt.members.all()))
    # Heartbeats sent before the end of a member still name it as alive.
    ended_at = member.ended_at if member is not None else attempt.ended_at
    if ended_at is not None and sent_at < ended_at.timestamp() + 2 * HEARTBEAT_S:
        return ""
    return "the server has given up this attempt"


def reap() -> int:
    """Mark members whose lease expired, or that are not prepared in time, as lost; return their number.

    After a pause of its own the reaper first waits for the duration of a lease, because no lease was renewed while the
    server was down.
    """
    if _uptime_s() < settings.LEASE_S:
        return 0
    now = shared_now()
    expired = Member.objects.filter(state__in=ACTIVE_MEMBER_STATES, lease_expires_at__lt=now)
    late = Member.objects.filter(
        state=MemberState.DISPATCHED, assigned_at__lt=now - timedelta(seconds=settings.PREPARE_S)
    )
    _announce_silent_nodes(now)
    nodes_judge()
    exclusions_expire()
    ids = {*expired.values_list("pk", flat=True), *late.values_list("pk", flat=True)}
    return sum(_lose_if_expired(pk) for pk in sorted(ids))


def _announce_silent_nodes(now: datetime) -> None:
    """Store an event for each node that has just fallen silent; disabled and drained nodes are left out."""
    recent = Node.objects.filter(
        is_enabled=True, is_draining=False, last_heartbeat_at__gt=now - _NEWS, last_heartbeat_at__lt=now - _SILENCE
    )
    for node in recent:
        if node.last_heartbeat_at is not None:
            node_lost(node=node, last_heartbeat_at=node.last_heartbeat_at)
    nodes_back(nodes=Node.objects.filter(inbox_items__done_at=None, last_heartbeat_at__gte=now - _SILENCE).distinct())


def _lose_if_expired(member_id: int) -> bool:
    now = shared_now()  # before the transaction, in which nothing may wait for Redis
    with transaction.atomic():
        attempt = Attempt.objects.get(members=member_id)
        attempt, _ = lock_attempt(attempt)
        member = next(each for each in lock_members(attempt) if each.pk == member_id)
        reason = _loss_reason(member, now)
        if not reason:
            return False  # a heartbeat or a report came in the meantime
        transaction.on_commit(lambda: orders.follow([attempt.pk]), robust=True)
        return attempt_lose(attempt=attempt, reason=reason, node_rank=member.node_rank)


def _loss_reason(member: Member, now: datetime) -> str:
    """Return why a member is lost; empty if it is not."""
    node, lease = member.node, member.lease_expires_at
    if not member.is_active or node is None:
        return ""
    has_lease = lease is None or lease >= now
    if has_lease and not (member.member_state is MemberState.DISPATCHED and _is_late(member, now)):
        return ""
    if node.last_heartbeat_at is not None and now - node.last_heartbeat_at >= _SILENCE:
        silence_s = (now - node.last_heartbeat_at).total_seconds()
        return f"node {node.name} has sent no heartbeat for {silence_s:.0f} s; check its daemon and its network"
    if member.member_state is MemberState.DISPATCHED:
        return f"node {node.name} did not prepare the run within {settings.PREPARE_S:.0f} s; see the log of its daemon"
    lease_s = node.lease.total_seconds()
    return f"node {node.name} is online but has not reported this run for {lease_s:.0f} s; see the log of its daemon"


def _is_late(member: Member, now: datetime) -> bool:
    # On a node of Slurm the run waits in a queue.
    is_queued_elsewhere = member.node is not None and member.node.is_queue
    return not is_queued_elsewhere and now - member.assigned_at > timedelta(seconds=settings.PREPARE_S)


def _uptime_s() -> float:
    """Return for how many seconds the reaper has been called without a pause."""
    now = shared_now().timestamp()
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5, decode_responses=True) as client:
        client.set(AWAKE_KEY, now, nx=True, ex=_AWAKE_TIMEOUT_S)
        client.expire(AWAKE_KEY, _AWAKE_TIMEOUT_S)
        since = client.get(AWAKE_KEY)
    return now - float(str(since)) if since else 0.0
