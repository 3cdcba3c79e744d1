"""Alerts of several watches with one cause: the first of them leads, the others follow it."""

from __future__ import annotations

import re
from datetime import timedelta

from django.db.models import Q

from parlab.lab.models import Node
from parlab.watch.analysis.environments import differences
from parlab.watch.analysis.measures import LINK_RATES

from .models import Alert, Watch, WatchQuerySet

WITHIN = timedelta(days=7)
"""Time between the first bad results of two watches that may have one cause, unless it is one commit."""
_SOFTWARE = ("driver", "nccl", "kernel", "system", "python", "torch", "packages.", "firmware.", "limits.")
_GPU = re.compile(r"\bgpu\d+_")
LENGTH = 300


def cause_of(alert: Alert) -> str:
    """Return what changed with an alert: its commit, else the software that changed, else its node; else nothing."""
    good, bad = alert.last_good, alert.first_bad
    if bad.commit and bad.commit != good.commit:
        return f"commit {bad.commit}"
    changes = {
        f"{_GPU.sub('gpu_', row.name)} {row.before or 'none'} -> {row.after or 'none'}"
        for row in differences(good.environment, bad.environment)
        if row.name.startswith(_SOFTWARE)
    }
    if changes:
        return "; ".join(sorted(changes))[:LENGTH]
    watch = alert.watch
    if watch.node is not None and watch.peer is not None:
        if not _is_slow_link(alert):
            return ""
        end = slow_end(alert)
        return f"node {end.name}" if end is not None else f"link {watch.node.name} - {watch.peer.name}"
    node = alert.node or (watch.node.name if watch.node is not None else "")
    return f"node {node}" if node else ""


def slow_end(alert: Alert) -> Node | None:
    """Return the end of a slow link whose other links are slow, too; None if that is true of no end or of both.

    Without another link of either end, cable and nodes cannot be told apart.
    """
    if not _is_slow_link(alert):
        return None
    ends = [node for node in (alert.watch.node, alert.watch.peer) if node is not None]
    slow = [node for node in ends if _has_only_slow_links(node, besides=alert.watch)]
    return slow[0] if len(slow) == 1 else None


def _is_slow_link(alert: Alert) -> bool:
    part = alert.largest
    return alert.watch.peer_id is not None and alert.is_worse and part.get("measure", "").startswith(LINK_RATES)


def _has_only_slow_links(node: Node, *, besides: Watch) -> bool:
    links = _links_of(node).exclude(pk=besides.pk)
    slow = Alert.objects.open().filter(watch__in=links, is_worse=True).select_related("watch")
    return 0 < links.count() == len({alert.watch_id for alert in slow if _is_slow_link(alert)})


def _links_of(node: Node) -> WatchQuerySet:
    return Watch.objects.enabled().exclude(peer=None).filter(Q(node=node) | Q(peer=node))


def leader_of(alert: Alert, cause: str) -> Alert | None:
    """Return the open alert with the same cause and direction that came first; None if there is none."""
    if not cause:
        return None
    # Of the same project: an alert that follows one that nobody here sees would not be announced.
    of_project = Alert.objects.open().filter(watch__project=alert.watch.project_id, is_worse=alert.is_worse)
    others = of_project.filter(cause=cause, leader=None).exclude(pk=alert.pk)
    if not cause.startswith("commit "):
        at = alert.first_bad.at
        others = others.filter(first_bad__at__gte=at - WITHIN, first_bad__at__lte=at + WITHIN)
    return others.select_related("first_bad", "watch").order_by("pk").first()


def alert_join(alert: Alert) -> Alert | None:
    """Store the cause of a new alert and let it follow an earlier alert with the same one, which is returned."""
    cause = cause_of(alert)
    if alert.watch.peer_id is not None and cause.startswith("node "):
        # The first slow link of the node was an alert of the pair.
        links = Watch.objects.exclude(peer=None).filter(Q(node__name=cause[5:]) | Q(peer__name=cause[5:]))
        Alert.objects.open().filter(watch__in=links, is_worse=True, cause__startswith="link ").update(cause=cause)
    leader = leader_of(alert, cause)
    Alert.objects.filter(pk=alert.pk).update(cause=cause, leader=leader)
    alert.cause, alert.leader = cause, leader
    return leader
