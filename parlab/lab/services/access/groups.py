"""The three groups of users and their permissions."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.auth.models import Group, Permission
from django.db import transaction
from django.db.models import Q

VIEWER, OPERATOR, ADMIN = "viewer", "operator", "admin"
OURS = ("lab", "series", "tuner", "watch", "pages", "notify")
"""Django apps whose rows every group may view."""
WORK = (
    "experiment", "config", "run", "finding", "snapshot", "source", "picture", "picturejob", "tag", "storedfile",
    "study", "trial", "watch", "alert", "bisect", "order", "savedview", "dashboard",
    "star", "tagofrun", "runnote", "comment", "inboxitem",
)  # fmt: skip
"""Models that operators may add and change."""
WRITING = ("report", "reportfile", "reportlink", "reportversion")
"""Models that operators may add; only the author of a report may edit, share and delete it."""
DELETED = ("tag", "study", "watch", "savedview", "dashboard", "star", "tagofrun", "runnote")
"""Models that operators may delete regardless of the author; no results or reports."""
SECRET = (
    *("apitoken", "subscription", "delivery", "refusedmessage", "nodekey", "loginfailure"),
    *("project", "membership", "projectpool", "serviceaccount"),
)
"""Models that only administrators may view."""


def _permissions_of(name: str) -> Q:
    view = Q(codename__startswith="view_", content_type__app_label__in=OURS) & ~Q(content_type__model__in=SECRET)
    if name == VIEWER:
        return view
    if name == OPERATOR:
        codenames = [f"{verb}_{model}" for verb in ("add", "change") for model in WORK]
        codenames += [f"add_{model}" for model in WRITING] + [f"delete_{model}" for model in DELETED]
        return view | Q(codename__in=codenames, content_type__app_label__in=OURS)
    return Q(content_type__app_label__in=(*OURS, "auth"))


@transaction.atomic
def groups_refresh() -> dict[str, int]:
    """Create the groups and add missing permissions; returns the number of permissions added to each.

    Permissions that an administrator added remain; those that an administrator removed are added again. Create a
    separate group for a smaller set of permissions.
    """
    added = {}
    for name in (VIEWER, OPERATOR, ADMIN):
        group, _ = Group.objects.get_or_create(name=name)
        added[name] = _add_missing(group, Permission.objects.filter(_permissions_of(name)))
    return added


def _add_missing(group: Group, permissions: Iterable[Permission]) -> int:
    existing = set(group.permissions.values_list("pk", flat=True))
    missing = [permission for permission in permissions if permission.pk not in existing]
    group.permissions.add(*missing)
    return len(missing)
