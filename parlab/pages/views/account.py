"""One's own account: what one may do, the password, and the tokens of one's scripts."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_POST

from parlab.lab import services as lab
from parlab.lab.models import ApiToken

# What people do here, and the right that each takes.
_RIGHTS = (
    ("launch, cancel and relaunch runs, import files, start studies", "lab.add_run"),
    ("make experiments and change their notes, tags and shelves", "lab.change_experiment"),
    ("edit configurations", "lab.change_config"),
    ("acknowledge findings", "lab.change_finding"),
    ("write, publish, share and delete reports of your own", "lab.add_report"),
    ("change and delete reports of others", "lab.change_report"),
    ("delete experiments with all their runs", "lab.delete_experiment"),
    ("switch nodes on and off", "lab.change_node"),
    ("manage people, groups and their tokens", "auth.change_user"),
)


@require_GET
def account(request: HttpRequest) -> HttpResponse:
    return _page(request)


@require_POST
@never_cache
def token_make(request: HttpRequest) -> HttpResponse:
    """Make a token; this answer is the only place that ever shows its secret."""
    user, name = cast(User, request.user), request.POST.get("name", "")
    try:
        token, secret = lab.token_create(user=user, name=name, by=user)
    except ValueError as problem:
        return _page(request, status=400, token_problem=f"No token was made: {problem}.", token_name=name[:80])
    return _page(request, made=token, secret=secret, address=request.build_absolute_uri("/api/experiments/"))


@require_POST
def token_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    user = cast(User, request.user)
    token = get_object_or_404(ApiToken, pk=pk, user=user)
    if lab.tokens_revoke(tokens=ApiToken.objects.filter(pk=token.pk), by=user):
        messages.success(request, f"Revoked {token.name}: requests with it end in 401.")
    return redirect("account")


@require_POST
@sensitive_post_parameters()
def password(request: HttpRequest) -> HttpResponse:
    """Change the password; other sessions of this person end, this one goes on."""
    form = PasswordChangeForm(cast(User, request.user), request.POST)
    if not form.is_valid():
        return _page(request, status=400, password_form=form)
    form.save()
    update_session_auth_hash(request, form.user)
    messages.success(request, "Your password is changed; you are logged out everywhere else.")
    return redirect("account")


def _page(request: HttpRequest, *, status: int = 200, **more: Any) -> HttpResponse:
    user = cast(User, request.user)
    context = {
        "section": "account",
        "groups": list(user.groups.values_list("name", flat=True)),
        "rights": [(words, user.has_perm(permission)) for words, permission in _RIGHTS],
        "tokens": list(user.api_tokens.filter(revoked_at=None).select_related("created_by")),
        **more,
    }
    form = context.setdefault("password_form", PasswordChangeForm(user))
    form.fields["old_password"].widget.attrs.pop("autofocus", None)  # the page is about more than this
    return render(request, "pages/account.html", context, status=status)
