"""Nodes that exclude themselves: those that ended several attempts, and those whose hardware has a fault."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from parlab.lab.models import Exclusion, Member, Node

from .exclusions import exclude, include

Place = tuple[int, str]
"""Id of a node, and the compute node of its Slurm or an empty text."""
_MEMBERS = 5_000


def nodes_judge() -> int:
    """Exclude the nodes that have become bad; return their number. A few short queries if there are none."""
    return attempts_judge() + _judge_hardware()


def exclusions_expire() -> int:
    """Put back the nodes whose time is over; return their number."""
    over = Exclusion.objects.open().filter(until__lt=timezone.now()).select_related("node")
    return sum(include(node=exclusion.node, host=exclusion.host) for exclusion in over)


def attempts_judge() -> int:
    """Exclude the nodes that have ended too many attempts; return their number."""
    since = timezone.now() - timedelta(seconds=settings.BAD_NODE_WINDOW_S)
    faulty = Member.objects.filter(is_node_fault=True, ended_at__gte=since, node__isnull=False)
    places: dict[Place, list[Member]] = defaultdict(list)
    for member in faulty.select_related("node", "attempt__run").order_by("-ended_at")[:_MEMBERS]:
        places[place_of(member)].append(member)
    many = {place: members for place, members in places.items() if _is_bad(members)}
    if not many:
        return 0
    judged = _ended_at(many)
    return sum(_judge_place(place, members, judged.get(place)) for place, members in many.items())


def place_of(member: Member) -> Place:
    """Return where a member ran: a node of Slurm or Kubernetes, else its node."""
    assert member.node is not None
    is_host = member.node.is_queue and member.place_name != member.node.name
    return member.node.pk, member.place_name if is_host else ""


def _ended_at(places: Mapping[Place, Any]) -> dict[Place, datetime]:
    """Return when each place was put back last: what it did before that was forgiven."""
    ended = Exclusion.objects.filter(node__in={node for node, _ in places}).exclude(ended_at=None)
    rows = ended.order_by("ended_at").values_list("node", "host", "ended_at")
    return {(node, host): at for node, host, at in rows if at is not None}


def _judge_place(place: Place, members: list[Member], since: datetime | None) -> bool:
    counted = [member for member in members if since is None or (member.ended_at and member.ended_at > since)]
    if not _is_bad(counted):
        return False
    node, failed = counted[0].node, _failed_check(counted)
    assert node is not None
    if failed is not None:
        return exclude(node=node, host=place[1], cause=Exclusion.Cause.HEALTH, reason=failed.reason)
    hours = settings.BAD_NODE_WINDOW_S / 3600
    reason = f"it ended {len(counted)} attempts within {hours:g} h, the last one: {counted[0].reason or 'lost'}"
    return exclude(node=node, host=place[1], cause=Exclusion.Cause.ATTEMPTS, reason=reason)


def _is_bad(members: Sequence[Member]) -> bool:
    return 0 < settings.BAD_NODE_ATTEMPTS <= len(members) or _failed_check(members) is not None


def _failed_check(members: Sequence[Member]) -> Member | None:
    """Return the last member whose node found a fault of its hardware: one is enough."""
    return next((member for member in members if "failed its health check" in member.reason), None)


def _judge_hardware() -> int:
    reporting = Node.objects.filter(left_out="", hardware__has_key="faults")
    return sum(_judge_faults(node) for node in reporting)


def _judge_faults(node: Node) -> bool:
    fatal = [f"{fault['device']}: {fault['text']}" for fault in node.hardware["faults"] if fault.get("is_fatal")]
    if not fatal:
        return False
    last = node.exclusions.filter(host="", cause=Exclusion.Cause.HEALTH).exclude(ended_at=None).first()
    if last is not None and last.ended_by and set(fatal) <= set(last.faults):
        return False  # a person has put it back in spite of them
    reason = f"it failed its health check: {'; '.join(fatal)}"
    return exclude(node=node, cause=Exclusion.Cause.HEALTH, reason=reason, faults=fatal)
