"""Signed orders to nodes: which order each member of an attempt is due, and sending it."""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import redis
from django.conf import settings
from django.db.models import Max
from django.utils import timezone

from parlab.ingest.batches.waiting import post
from parlab.ingest.summaries.checkpoints import BYTES
from parlab.lab.models import Attempt, Member, MemberState, Node, Run
from parlab.lab.services.access.node_keys import signing_key, signing_keys
from parlab.lab.services.chains import chain_left_s
from parlab.lab.services.members import cause_text, first_cause
from parlab.series.models import SeriesChunk
from runners.config.kubernetes import KubernetesSection
from runners.config.sections import CheckpointSection, LauncherSection
from runners.wire.protocol import (
    CANCEL_TASK,
    GO_TASK,
    ROTATE_TASK,
    START_TASK,
    Cancel,
    Go,
    Order,
    Peer,
    Rotate,
    RunSpec,
    node_queue,
    sign,
)
from runners.wire.trust import Key

logger = logging.getLogger(__name__)

CANCELLED = "cancelled by a person"
_NEW_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "launcher": {
        name: getattr(LauncherSection(), name)
        for name in LauncherSection.model_fields
        if name.startswith(("grace_s", "container", "warn_", "chain"))
    },
    "slurm": {"exclude": None},
    "kubernetes": KubernetesSection().model_dump(mode="json"),
    "checkpoint": CheckpointSection().model_dump(),
}
"""Fields that daemons of 0.1 do not have, with their defaults; a section of which no field is left goes too."""
_HOST = re.compile(r"[A-Za-z0-9_.-]+")
CAUSE_WAIT_S = 4.0
"""Wait so long for the first cause if only consequences are known; heartbeats ask again for the order."""
CHECKPOINT_WAIT_S = 60.0
"""Wait so long for the checkpoints of the other members after that of the first."""
_TASKS = {"start": START_TASK, "go": GO_TASK, "cancel": CANCEL_TASK, "rotate": ROTATE_TASK}


def follow(attempt_ids: Collection[int]) -> None:
    """Send the orders that the last reports make due at once: Go if all are prepared, Cancel if one has ended."""
    attempts = Attempt.objects.select_related("run").with_members().filter(pk__in=attempt_ids)
    due = [due_order(attempt, member) for attempt in attempts for member in attempt.members.all()]
    due += [_next_dropped(attempt) for attempt in attempts if attempt.run.is_final]
    send_all([order for order in due if order is not None and not isinstance(order, RunSpec)])


def _next_dropped(attempt: Attempt) -> Cancel | None:
    """Return the order that tells a queue that no attempt follows in a chain: its next job may wait already."""
    node = attempt.node
    if not attempt.run.is_chain or node is None or node.system != "slurm":
        return None
    return Cancel(run=attempt.run_id, attempt=attempt.number + 1, node=node.name, reason="the chain has ended")


def drop_next(attempt_id: int) -> None:
    """Tell the node of a chain that a person has ended that no attempt follows the current one."""
    attempt = Attempt.objects.select_related("run").with_members().filter(pk=attempt_id).first()
    if attempt is not None and (order := _next_dropped(attempt)) is not None:
        send(order)


def due_order(attempt: Attempt, member: Member) -> Order | None:
    """Return the order that brings a member to its next state, from the states of all members; None if none is due.

    A node ignores an order that it has already carried out, so that every order may be sent again.
    """
    if member.node is None or not member.is_active:
        return None
    names = {"run": attempt.run_id, "attempt": attempt.number, "node": member.node.name, "node_rank": member.node_rank}
    members = list(attempt.members.all())
    if reason := stop_reason(attempt, members):
        return Cancel(**names, reason=reason, is_consequence=reason != CANCELLED)
    if member.member_state is MemberState.DISPATCHED:
        resolved = within_chain(attempt.run, attempt.run.resolved)
        config = for_any_node(_without_bad_hosts(resolved, member.node))
        return RunSpec(**names, config=config, nodes=len(members), saved_step=saved_step(attempt))
    is_prepared = not any(each.member_state is MemberState.DISPATCHED for each in members)
    if member.member_state is MemberState.PREPARED and is_prepared:
        return Go(**names, members=[_peer(each) for each in members])
    return None


def saved_step(attempt: Attempt) -> int | None:
    """Return the last step that an earlier attempt of the run has saved; None if it saves nothing."""
    run = attempt.run
    wanted = run.resolved.get("checkpoint", {})
    if attempt.number <= run.chain_from or not (wanted.get("every_steps") or wanted.get("every_s")):
        return None
    earlier = Attempt.objects.filter(run=run, number__gte=run.chain_from, number__lt=attempt.number)
    saves = SeriesChunk.objects.filter(attempt__in=earlier.values("pk"), metric=BYTES)
    last: int | None = saves.aggregate(last=Max("last_step"))["last"]
    return last


def for_any_node(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out new fields with their defaults, which daemons of 0.1 would refuse; goes with 0.3."""
    sent = dict(resolved)
    for section, new in _NEW_FIELDS.items():
        if section in sent:
            sent[section] = {
                name: value for name, value in sent[section].items() if name not in new or value != new[name]
            }
    return {section: values for section, values in sent.items() if values or section not in _NEW_FIELDS}


def _without_bad_hosts(resolved: Mapping[str, Any], node: Node) -> Mapping[str, Any]:
    """Add the nodes that are excluded to those that a job of Slurm or pods of Kubernetes must not use."""
    if not (system := node.system):
        return resolved
    bad = node.exclusions.open().of_hosts().order_by("host").values_list("host", flat=True)
    section = resolved.get(system) or {}
    own = section.get("exclude")
    names = [*filter(None, [own]), *(name for name in bad if _HOST.fullmatch(name))]
    return {**resolved, system: {**section, "exclude": ",".join(names)}} if names else resolved


def within_chain(run: Run, resolved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Shorten the limit of an attempt to the rest of `launcher.chain_until_s`, and what has to fit into it."""
    launcher = resolved.get("launcher", {})
    if launcher.get("chain_until_s") is None:
        return resolved
    left_s = chain_left_s(run, list(run.attempts.all()))
    limit_s = max(1, int(launcher["chain_until_s"] if left_s is None else left_s))
    if limit_s >= launcher["timeout_s"]:
        return resolved
    short: dict[str, Any] = {"timeout_s": limit_s, "grace_s": min(launcher["grace_s"], limit_s)}
    if launcher.get("warn_before_s") is not None:
        short["warn_before_s"] = min(launcher["warn_before_s"], limit_s - 1) or None
    return {**resolved, "launcher": {**launcher, **short}}


def stop_reason(attempt: Attempt, members: Sequence[Member]) -> str:
    """Return why the active members of an attempt must stop; empty if they may continue."""
    if attempt.run.cancel_requested_at and attempt.run.attempt_number == attempt.number:
        return CANCELLED
    cause = first_cause(members)
    if cause is None or _may_follow_another(cause, members):
        return ""
    return cause_text(cause, len(members))


def _may_follow_another(cause: Member, members: Sequence[Member]) -> bool:
    """Return whether to wait for the member that ended first: the others may notice and report it sooner."""
    if cause.ended_at is None or not any(member.is_active for member in members):
        return False
    waited_s = (timezone.now() - cause.ended_at).total_seconds()
    if cause.member_state is MemberState.CHECKPOINTED:  # the others write theirs
        return 0 <= waited_s < CHECKPOINT_WAIT_S
    return cause.is_consequence and 0 <= waited_s < CAUSE_WAIT_S


def _peer(member: Member) -> Peer:
    return Peer(
        node=member.node_name,
        node_rank=member.node_rank,
        address=str(member.rendezvous.get("address", "127.0.0.1")),
        port=int(member.rendezvous.get("port", 0)),
        clock_offset_s=member.clock_offset_s,
    )


def send_all(orders: Sequence[Order]) -> bool:
    """Send orders with one round trip; return whether the broker is available.

    A node without a key gets none. Each order is repeated for as long as it is due.
    """
    if not orders:
        return True
    nodes = {order.node for order in orders}
    keys, queues = signing_keys(nodes), queues_of(nodes)
    return _send([(order, keys[order.node], queues[order.node]) for order in orders])


def send(order: Order | Rotate) -> bool:
    """Send an order to its node; return whether the broker is available. A node without a key gets none."""
    return _send([(order, signing_key(order.node), queues_of({order.node})[order.node])])


def queues_of(nodes: Collection[str]) -> dict[str, str]:
    """Return the queue of the daemon that has each node name; that of the node if it reads no other."""
    rows = Node.objects.filter(name__in=nodes, abilities__own_queue=True).values_list("name", "identity")
    return {name: node_queue(name) for name in nodes} | {
        name: node_queue(name, identity.partition("@")[0]) for name, identity in rows
    }


def _send(parts: Sequence[tuple[Order | Rotate, Key | None, str]]) -> bool:
    messages = []
    for order, key, queue in parts:
        if key is None:
            logger.warning("no %s for node %s, whose key was revoked", order.purpose, order.node)
        else:
            messages.append((queue, _TASKS[order.purpose], sign(order, key)))
    try:
        post(settings.REDIS_URL, messages)
    except (redis.RedisError, OSError) as error:
        what = f"{parts[0][0].purpose} for node {parts[0][0].node}" if len(parts) == 1 else f"{len(parts)} orders"
        logger.warning("%s not sent because Redis is unavailable; to be sent again: %s", what, error)
        return False
    return True
