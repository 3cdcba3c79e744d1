"""The audit log: every request that has changed something, by any road, is recorded with its user."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import User
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.urls import ResolverMatch

from parlab.lab.models import AuditEntry
from parlab.lab.services.access.audit import audit_add

Action = AuditEntry.Action

_UNSAFE = ("POST", "PUT", "PATCH", "DELETE")
QUIET = frozenset(
    (
        *("login", "account_login", "signon", "mfa_authenticate"),  # logins record themselves
        *("account_reauthenticate", "mfa_reauthenticate", "mfa_reauthenticate_webauthn"),
        *(
            "columns",
            "compare",
            "csp-report",
            "dashboard-figure",
            "experiment-layout",
            "import",
            "import-paste",
            "inbox-own",
            "plan",
            "plan-beside",
            "plan-search",
        ),
        *("question-preview", "report-editing", "report-figure", "report-preview", "simulate"),
        *(
            "inbox-own",
            "inbox-unmute",
            "plan-config",
            "stream",
            "stream-file",
            "timelines",
            "wandb-file",
            "wandb-operation",  # what deletes records itself
            "wandb-stream",
            "wandb-telemetry",
            "api:plan",
            "api:simulate",
            "api:format-guess",
            "api:columns",
            "api:seen",
            "api:pasted",
        ),
    )
)
"""Addresses that compute, preview, keep a preference, or report the numbers of a run."""
_ACTIONS = {
    **dict.fromkeys(
        ("launch", "run-relaunch", "study-start", "demo-launch", "run-advice-try", "watch-bisect", "answer",
         "inbox-try", "inbox-decide", "api:approval",
         "api:launch", "api:relaunch", "api:studies", "api:run-advice", "api:watch-run",
         "api:alert-bisect", "api:ask"), Action.LAUNCH),
    **dict.fromkeys(("run-cancel", "api:cancel"), Action.CANCEL),
    **dict.fromkeys(
        ("report-publish", "report-share", "report-revoke", "api:report-publish", "api:links", "api:link",
         "link-make", "link-withdraw", "api:public-links", "api:public-link"),
        Action.SHARE),
    **dict.fromkeys(
        ("password", "token-make", "token-revoke", "connect-token", "device-login", "admin:password_change",
         "api:tokens", "api:token", "project-create", "project-change", "api:projects", "api:project", "api:member",
         "service-account-create", "service-account-act", "api:service-accounts", "api:service-account",
         "api:service-tokens", "api:service-token"),
        Action.ACCESS),
}  # fmt: skip
_FORMS = ("admin:", "mfa_")
"""Names of forms that are shown again, with status 200, if something is wrong with them."""
_ACCESS = re.compile(r"mfa_|admin:(?:auth_|lab_(?:apitoken|nodekey|node_))")
# Scripts call these thousands of times; the runs themselves name their owners.
_MLFLOW = re.compile(
    r"^(?:ajax-)?api/[\d.]+/mlflow/(?:experiments/(?:create|update|delete|restore)|runs/(?:delete|restore))$"
)

Answer = Callable[[HttpRequest], HttpResponse]


class Audit:
    """Record requests that have changed something."""

    # Django's own handlers may run it in either mode; a plain class is called in a thread.
    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.method not in _UNSAFE:
            return self._get_response(request)
        before = request.user if request.user.is_authenticated else None
        response = self._get_response(request)
        user: Any = request.user if request.user.is_authenticated else before
        if isinstance(user, User) and request.resolver_match is not None:
            _record(request, request.resolver_match, response, user)
        return response


def action_of(match: ResolverMatch, method: str, fields: Any, status: int) -> Action | None:
    """Return what a successful request has done; None if that is not recorded."""
    name = match.view_name
    if status >= 400 or name in QUIET:
        return None
    if "mlflow" in match.route:
        return None if not _MLFLOW.match(match.route) else Action.DELETE if "delete" in match.route else Action.CHANGE
    is_form = name.startswith(_FORMS) and not name.endswith("_changelist")
    if is_form and status == 200:  # the form again, with its errors
        return None
    if name in _ACTIONS:
        return _ACTIONS[name]
    if _ACCESS.match(name):
        return Action.ACCESS
    hints = f"{name} {match.kwargs.get('action', '')} {fields.get('action', '')} {fields.get('do', '')}"
    if method == "DELETE" or "delete" in hints:
        return Action.DELETE
    if "relaunch" in hints:
        return Action.LAUNCH
    return Action.CANCEL if "cancel" in hints else Action.CHANGE


def login_record(request: HttpRequest, user: User) -> None:
    """Record a login, whatever way it came."""
    match = request.resolver_match
    try:
        audit_add(
            user=user,
            action=Action.LOGIN,
            route=match.view_name if match else "proxy",
            method=str(request.method),
            path=request.path,
            status=200,
            address=str(request.META.get("REMOTE_ADDR", "")),
        )
    except DatabaseError:
        logging.getLogger(__name__).exception("the login of %s was not recorded", user)


def _sender(request: HttpRequest, token: str) -> str:
    """Return the name of the token, with the agent that acts with it."""
    agent = request.headers.get("Parlab-Agent", "")
    return f"{token[:35]}, agent {agent[:35]}" if token and agent else token


def _record(request: HttpRequest, match: ResolverMatch, response: HttpResponse, user: User) -> None:
    # Only forms were read by the time of the answer; the body of other requests may be large.
    is_form = request.content_type in ("application/x-www-form-urlencoded", "multipart/form-data")
    method = str(request.method)
    stated = getattr(request, "audited", None) if response.status_code < 400 else None
    action = stated or action_of(match, method, request.POST if is_form else {}, response.status_code)
    if action is None:
        return
    token = getattr(request, "auth", None)
    try:
        audit_add(
            user=user,
            action=action,
            route=match.view_name or match.route,
            method=method,
            path=request.path,
            status=response.status_code,
            token=_sender(request, str(getattr(token, "name", ""))),
            address=str(request.META.get("REMOTE_ADDR", "")),
        )
    except DatabaseError:
        logging.getLogger(__name__).exception("%s %s of %s was not recorded", method, request.path, user)
