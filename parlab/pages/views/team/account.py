"""The account page of a user: permissions, password, API tokens."""

from __future__ import annotations

from typing import Any, cast

from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_POST

from parlab.lab.models import SCOPE_TEXTS, USUAL_SCOPES, ApiToken
from parlab.lab.selectors.projects import seen_project
from parlab.lab.services.access.passwords import has_second_factor
from parlab.lab.services.access.rights import viewer_for
from parlab.lab.services.access.tokens import token_create, tokens_revoke
from parlab.pages.forms.token_choices import TOKEN_DAYS, token_days

# Actions and the permission that each requires.
_RIGHTS = (
    ("launch, cancel and relaunch runs, import files, start studies", "lab.add_run"),
    ("create experiments, edit their notes and tags, archive them", "lab.change_experiment"),
    ("edit configurations", "lab.change_config"),
    ("acknowledge findings", "lab.change_finding"),
    ("write, publish, share and delete your own reports", "lab.add_report"),
    ("change and delete reports of other users", "lab.change_report"),
    ("delete experiments with all their runs", "lab.delete_experiment"),
    ("enable and disable nodes", "lab.change_node"),
    ("manage users, groups and tokens", "auth.change_user"),
)


@require_GET
@never_cache
def account(request: HttpRequest) -> HttpResponse:
    return _page(request)


@require_POST
@never_cache
def token_make(request: HttpRequest) -> HttpResponse:
    """Create a token. Only this response contains its secret."""
    user, name = cast(User, request.user), request.POST.get("name", "")
    scopes, days = request.POST.getlist("scopes"), request.POST.get("days", "")
    try:
        lifetime = token_days(days)
        slug = request.POST.get("project", "")
        project = seen_project(viewer_for(user), slug) if slug else None
        token, secret = token_create(user=user, name=name, by=user, scopes=scopes, days=lifetime, project=project)
    except ValueError as problem:
        more = {"token_name": name[:80], "token_scopes": scopes, "token_days": days}
        return _page(request, status=400, token_problem=f"The token was not created: {problem}.", **more)
    return _page(request, made=token, secret=secret, address=request.build_absolute_uri("/api/experiments/"))


@require_POST
@never_cache
def token_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    user = cast(User, request.user)
    token = get_object_or_404(ApiToken, pk=pk, user=user)
    if count := tokens_revoke(tokens=ApiToken.objects.filter(pk=token.pk), by=user):
        others = f" and {count - 1} that it had created" if count > 1 else ""
        messages.success(request, f"Revoked {token.name}{others}. Requests with a revoked token fail with status 401.")
    return redirect("account")


@require_POST
@never_cache
@sensitive_post_parameters()
def password(request: HttpRequest) -> HttpResponse:
    """Change the password. The current session continues; all others end."""
    form = PasswordChangeForm(cast(User, request.user), request.POST)
    if not form.is_valid():
        return _page(request, status=400, password_form=form)
    form.save()
    update_session_auth_hash(request, form.user)
    messages.success(request, "Password changed. All other sessions were logged out.")
    return redirect("account")


def _page(request: HttpRequest, *, status: int = 200, **more: Any) -> HttpResponse:
    user = cast(User, request.user)
    context = {
        "section": "account",
        "groups": list(user.groups.values_list("name", flat=True)),
        "rights": [(description, user.has_perm(permission)) for description, permission in _RIGHTS],
        "second_factor": has_second_factor(user),
        "issuer": settings.OIDC_NAME if settings.OIDC_ISSUER else "",
        "connected": SocialAccount.objects.filter(user=user).exists(),
        "scopes": SCOPE_TEXTS.items(),
        "days": TOKEN_DAYS,
        "token_scopes": USUAL_SCOPES,
        "token_days": "365",
        "tokens": list(user.api_tokens.filter(revoked_at=None).select_related("created_by", "project")),
        **more,
    }
    form = context.setdefault("password_form", PasswordChangeForm(user))
    form.fields["old_password"].widget.attrs.pop("autofocus", None)  # the form is only one part of the page
    return render(request, "pages/account/account.html", context, status=status)
