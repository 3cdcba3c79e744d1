"""Alerts of several watches with one cause: the first of them leads, the others follow it."""

from __future__ import annotations

import re
from datetime import timedelta

from .environments import differences
from .models import Alert

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
    node = alert.node or (watch.node.name if watch.node and not watch.peer_id else "")
    return f"node {node}" if node else ""


def leader_of(alert: Alert, cause: str) -> Alert | None:
    """Return the open alert with the same cause and direction that came first; None if there is none."""
    if not cause:
        return None
    others = Alert.objects.open().filter(cause=cause, leader=None, is_worse=alert.is_worse).exclude(pk=alert.pk)
    if not cause.startswith("commit "):
        at = alert.first_bad.at
        others = others.filter(first_bad__at__gte=at - WITHIN, first_bad__at__lte=at + WITHIN)
    return others.select_related("first_bad", "watch").order_by("pk").first()


def alert_join(alert: Alert) -> Alert | None:
    """Store the cause of a new alert and let it follow an earlier alert with the same one, which is returned."""
    cause = cause_of(alert)
    leader = leader_of(alert, cause)
    Alert.objects.filter(pk=alert.pk).update(cause=cause, leader=leader)
    alert.cause, alert.leader = cause, leader
    return leader
