"""Service accounts of a project, on its page: created, ended, and given tokens by its maintainers."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from parlab.lab.models import ApiToken, Project, ServiceAccount
from parlab.lab.selectors.projects import service_account
from parlab.lab.services.access import service_accounts as services
from parlab.lab.services.access.tokens import tokens_revoke
from parlab.pages.forms.token_choices import token_days

from .projects import managed_project, project_page


@require_POST
def create(request: HttpRequest, slug: str) -> HttpResponse:
    project, fields = managed_project(request, slug), request.POST
    try:
        made = services.service_account_create(
            project=project,
            name=fields.get("name", ""),
            role=fields.get("role", ""),
            purpose=fields.get("purpose", ""),
            by=cast(User, request.user),
        )
    except ValueError as problem:
        return project_page(request, project, status=400, account_problem=f"Not created: {problem}.")
    messages.success(request, f"Created {made}. Create a token for it.")
    return redirect(f"{project.get_absolute_url()}#service-accounts")


@require_POST
@never_cache
def act(request: HttpRequest, slug: str, name: str, action: str) -> HttpResponse:
    """Create or revoke a token of a service account, or end the account."""
    project = managed_project(request, slug)
    account = service_account(project, name)
    if action not in _ACTIONS:
        raise Http404(f"unknown action {action}; use one of {', '.join(_ACTIONS)}")
    return _ACTIONS[action](request, project, account)


def _token(request: HttpRequest, project: Project, account: ServiceAccount) -> HttpResponse:
    """Create a token. Only this response contains its secret."""
    fields = request.POST
    try:
        token, secret = services.service_token_create(
            account=account,
            name=fields.get("token", ""),
            scopes=fields.getlist("scopes"),
            days=token_days(fields.get("days", "")),
            by=cast(User, request.user),
        )
    except ValueError as problem:
        return project_page(request, project, status=400, account_problem=f"The token was not created: {problem}.")
    return project_page(request, project, made=token, secret=secret)


def _revoke(request: HttpRequest, project: Project, account: ServiceAccount) -> HttpResponse:
    pk = request.POST.get("pk", "")
    token = get_object_or_404(ApiToken, pk=int(pk) if pk.isdecimal() else 0, user=account.user)
    tokens_revoke(tokens=ApiToken.objects.filter(pk=token.pk), by=cast(User, request.user))
    messages.success(request, f"Revoked {token.name} of {account}.")
    return redirect(f"{project.get_absolute_url()}#service-accounts")


def _end(request: HttpRequest, project: Project, account: ServiceAccount) -> HttpResponse:
    services.service_account_end(account=account, by=cast(User, request.user))
    messages.success(request, f"{account} has ended. Its runs stay.")
    return redirect(f"{project.get_absolute_url()}#service-accounts")


_ACTIONS = {"token": _token, "revoke": _revoke, "end": _end}
