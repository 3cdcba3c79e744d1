"""Reports of browsers about content that the policy of the pages has blocked."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from parlab.lab.services.access.refused import refused_store
from parlab.refusals import PENDING

MAX_BYTES = 16 << 10
STORE_EVERY_S = 1.0


@csrf_exempt
@login_not_required
@require_POST
def csp_report(request: HttpRequest) -> HttpResponse:
    """Count a report by directive and blocked origin; anybody may send one, so nothing in it is trusted."""
    body = request.read(MAX_BYTES + 1)
    try:
        content: Any = json.loads(body) if len(body) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        content = None
    report = content.get("csp-report") if isinstance(content, dict) else None
    if not isinstance(report, dict):
        return HttpResponse("send a CSP report as JSON, of at most 16 KiB\n", status=400, content_type="text/plain")
    directive, blocked = (str(report.get(name, ""))[:100] for name in ("effective-directive", "blocked-uri"))
    directive = directive or str(report.get("violated-directive", ""))[:100]
    sample = json.dumps(report).encode()
    PENDING.add("csp", f"browser blocked {blocked or 'inline content'} by {directive}", size=len(body), sample=sample)
    refused = PENDING.take(every_s=STORE_EVERY_S)
    if refused:
        refused_store(refused=refused)
    return HttpResponse(status=204)
