"""Public links of the person: make, list, withdraw."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from parlab.lab.models import Dashboard, Experiment, Run
from parlab.lab.selectors.projects import seen_links
from parlab.lab.services.public_links import link_create, link_revoke, may_revoke

KINDS: dict[str, Any] = {"experiment": Experiment, "run": Run, "dashboard": Dashboard}


@require_GET
def links(request: HttpRequest) -> HttpResponse:
    """List the links in force that the person may withdraw."""
    user = cast(User, request.user)
    mine = [link for link in seen_links() if may_revoke(user, link)]
    rows = [(link, request.build_absolute_uri(reverse("shared", args=[link.token]))) for link in mine]
    return render(request, "pages/account/links.html", {"section": "links", "rows": rows})


@require_POST
@permission_required("lab.add_reportlink", raise_exception=True)
def make(request: HttpRequest, kind: str, pk: int) -> HttpResponse:
    if kind not in KINDS:
        raise Http404(f"unknown kind {kind}; use one of {', '.join(KINDS)}")
    subject = get_object_or_404(KINDS[kind].objects.all(), pk=pk)
    try:
        link_create(subject=subject, user=cast(User, request.user))
    except ValueError as problem:
        messages.error(request, f"Not shared: {problem}.")
        return redirect(subject)
    messages.success(request, "Anyone with the link can read this without login until you withdraw it.")
    return redirect("links")


@require_POST
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    link = get_object_or_404(seen_links(), pk=pk)
    user = cast(User, request.user)
    if not may_revoke(user, link):
        raise PermissionDenied("this link belongs to another user")
    link_revoke(link=link, user=user)
    messages.success(request, "Withdrawn.")
    return redirect("links")
