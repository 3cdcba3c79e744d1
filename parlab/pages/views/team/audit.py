"""The audit log for administrators."""

from __future__ import annotations

from django.contrib.auth.decorators import permission_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from parlab.lab.models import AuditEntry

PER_PAGE = 100


@require_GET
@never_cache
@permission_required("auth.change_user", raise_exception=True)
def audit(request: HttpRequest) -> HttpResponse:
    """Show who changed what, newest first."""
    entries = AuditEntry.objects.all()
    action, person, text = (request.GET.get(name, "").replace("\0", "") for name in ("action", "user", "text"))
    if action in AuditEntry.Action.values:
        entries = entries.filter(action=action)
    if person:
        entries = entries.filter(username__iexact=person[:150])
    if text:
        entries = entries.filter(path__icontains=text[:300])
    page = Paginator(entries, PER_PAGE).get_page(request.GET.get("page"))
    query = request.GET.copy()
    query.pop("page", None)
    context = {
        "section": "audit",
        "page": page,
        "actions": AuditEntry.Action.choices,
        "action": action,
        "person": person,
        "text": text,
        "query": query.urlencode(),
    }
    return render(request, "pages/account/audit.html", context)
