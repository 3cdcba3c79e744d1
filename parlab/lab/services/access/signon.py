"""Single sign-on: which roles the groups of a person give, and which they take away, at each login."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator
from typing import NamedTuple

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db import transaction

from parlab.lab.models import Membership, Project, Role
from parlab.lab.models.access.viewer import RANK

from .groups import ADMIN, OPERATOR, VIEWER

logger = logging.getLogger(__name__)

ANYBODY = "*"
OUR_GROUPS = (VIEWER, OPERATOR, ADMIN)
STAFF = (OPERATOR, ADMIN)
"""Groups whose members use the administration, where configurations are edited."""


class Given(NamedTuple):
    """What the groups of a person give: groups of this server, and a role by the slug of a project."""

    groups: frozenset[str]
    projects: dict[str, Role]

    @property
    def is_admitted(self) -> bool:
        return bool(self.groups or self.projects or not role_map())


def role_map() -> dict[str, str | list[str]]:
    """Return the roles of each group as `PARLAB_SIGNON_GROUPS` states them. Raises ValueError."""
    stated = settings.SIGNON_GROUPS
    mapping = json.loads(stated or "{}") if isinstance(stated, str) else stated
    if not isinstance(mapping, dict):
        raise ValueError('expected an object, such as {"gpu-admins": "admin"}')
    return mapping


def wishes() -> Iterator[tuple[str, str]]:
    """Yield each group of the setting with each of its roles. Raises ValueError for an invalid setting."""
    for group, roles in role_map().items():
        for role in [roles] if isinstance(roles, str) else roles:
            place, _, name = str(role).rpartition(":")
            if name not in (Role.values if place else OUR_GROUPS):
                raise ValueError(
                    f"role {role!r} of group {group!r} is unknown; use viewer, operator, admin or SLUG:ROLE"
                )
            yield group, str(role)


def given_by(groups: Collection[str]) -> Given:
    """Return what groups of the issuer give; the highest role counts."""
    named, projects = set[str](), dict[str, Role]()
    for group, wish in wishes():
        if group != ANYBODY and group not in groups:
            continue
        slug, _, name = wish.rpartition(":")
        if not slug:
            named.add(name)
        elif slug not in projects or RANK[Role(name)] > RANK[projects[slug]]:
            projects[slug] = Role(name)
    return Given(frozenset(named), projects)


@transaction.atomic
def roles_apply(*, user: User, groups: Collection[str]) -> Given:
    """Give a person what their groups give, and take what they gave before. Roles given by hand stay."""
    given = given_by(groups)
    if any(":" not in wish for _, wish in wishes()):
        others = list(user.groups.exclude(name__in=OUR_GROUPS))
        user.groups.set([*others, *Group.objects.filter(name__in=given.groups)])
        user.is_staff = user.is_superuser or bool(given.groups & {*STAFF})
        user.save(update_fields=["is_staff"])
    kept = [_member(user, slug, role) for slug, role in given.projects.items()]
    Membership.objects.filter(user=user, is_from_groups=True).exclude(project__in=kept).delete()
    return given


def _member(user: User, slug: str, role: Role) -> int | None:
    project = Project.objects.filter(slug=slug).first()
    if project is None:
        logger.warning("PARLAB_SIGNON_GROUPS names project %s, which does not exist", slug)
        return None
    row, is_new = Membership.objects.get_or_create(
        project=project, user=user, defaults={"role": role, "is_from_groups": True}
    )
    if not is_new and row.is_from_groups and row.role != role:
        Membership.objects.filter(pk=row.pk).update(role=role)
    return project.pk
