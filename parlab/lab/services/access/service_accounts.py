"""Service accounts: what a pipeline or a machine acts as, in one project. Only tokens let them in."""

from __future__ import annotations

import re
from collections.abc import Collection

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from parlab.lab.models import ApiToken, Membership, Project, Role, ServiceAccount
from parlab.lab.services import storable

from .tokens import token_create, tokens_revoke

MAX_ACCOUNTS = 50
"""Active service accounts of a project."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_PURPOSE = 120


@transaction.atomic
def service_account_create(
    *, project: Project, name: str, by: User, role: str = Role.OPERATOR, purpose: str = ""
) -> ServiceAccount:
    """Create the account `NAME@PROJECT.service` with a role in its project. Raises ValueError with a remedy."""
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise ValueError(f"name {name[:40]!r} is invalid; use 1 to 40 lower-case letters, digits and dashes")
    if role not in Role.values:
        raise ValueError(f"role {role[:20]!r} is unknown; use {', '.join(Role.values)}")
    if project.service_accounts.filter(user__is_active=True).count() >= MAX_ACCOUNTS:
        raise ValueError(f"{project} already has {MAX_ACCOUNTS} service accounts; end one that is no longer used")
    user = User(username=f"{name}@{project.slug}.service")
    user.set_unusable_password()
    try:
        with transaction.atomic():
            user.save()
    except IntegrityError:
        raise ValueError(f"name {name!r} is taken in {project}, also by ended accounts; choose another") from None
    Membership.objects.create(project=project, user=user, role=role)
    purpose = storable.text(" ".join(purpose.split()))[:_PURPOSE]
    return ServiceAccount.objects.create(user=user, project=project, purpose=purpose, created_by=by)


def service_token_create(
    *,
    account: ServiceAccount,
    name: str,
    by: User,
    scopes: Collection[str],
    days: int | None,
    created_with: ApiToken | None = None,
) -> tuple[ApiToken, str]:
    """Create a token of a service account, which reaches its project alone. Raises ValueError with a remedy."""
    if not account.user.is_active:
        raise ValueError(f"{account} has ended; create another service account")
    return token_create(
        user=account.user,
        name=name,
        by=by,
        scopes=scopes,
        days=days,
        project=account.project,
        created_with=created_with,
    )


@transaction.atomic
def service_account_end(*, account: ServiceAccount, by: User) -> int:
    """End an account for good: its tokens are revoked, its runs stay. Returns the number of tokens."""
    count = tokens_revoke(tokens=ApiToken.objects.filter(user=account.user), by=by)
    Membership.objects.filter(user=account.user).delete()
    account.user.is_active = False
    account.user.save(update_fields=["is_active"])
    return count
