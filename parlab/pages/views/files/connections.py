"""Connect a script: snippets for each way to report, a token, and the newest run that reports."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET


@require_GET
def connect(request: HttpRequest) -> HttpResponse:
    return render(request, "pages/connect.html", {"section": "connect"})
