"""The three groups that people belong to, and what each may do."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.auth.models import Group, Permission
from django.db import transaction
from django.db.models import Q

VIEWER, OPERATOR, ADMIN = "viewer", "operator", "admin"
OURS = ("lab", "series", "tuner", "pages")
"""Applications whose rows anybody may look at."""
WORK = (
    "experiment", "config", "run", "finding", "snapshot", "source", "picture", "picturejob", "tag", "storedfile",
    "study", "trial",
)  # fmt: skip
"""What operators make and change."""
WRITING = ("report", "reportfile", "reportlink", "reportversion")
"""What operators make; each writes, shares and deletes their own: a report says what its author found."""
DELETED = ("tag", "study")
"""What operators may delete of everybody's: nothing that was measured or written."""
SECRET = ("apitoken",)
"""What only administrators look at."""


def _wanted(name: str) -> Q:
    may = Q(codename__startswith="view_", content_type__app_label__in=OURS) & ~Q(content_type__model__in=SECRET)
    if name == VIEWER:
        return may
    if name == OPERATOR:
        works = [f"{verb}_{model}" for verb in ("add", "change") for model in WORK]
        works += [f"add_{model}" for model in WRITING] + [f"delete_{model}" for model in DELETED]
        return may | Q(codename__in=works, content_type__app_label__in=OURS)
    return Q(content_type__app_label__in=(*OURS, "auth"))


@transaction.atomic
def groups_refresh() -> dict[str, int]:
    """Make the groups, and give them what they lack; returns how many permissions each was given.

    What an administrator added to a group stays; what one took away comes back, so make a group of your own for that.
    """
    given = {}
    for name in (VIEWER, OPERATOR, ADMIN):
        group, _ = Group.objects.get_or_create(name=name)
        given[name] = _give(group, Permission.objects.filter(_wanted(name)))
    return given


def _give(group: Group, permissions: Iterable[Permission]) -> int:
    held = set(group.permissions.values_list("pk", flat=True))
    lacking = [permission for permission in permissions if permission.pk not in held]
    group.permissions.add(*lacking)
    return len(lacking)
