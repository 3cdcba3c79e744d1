"""The view of a trace: lanes by rank, zoom with levels of detail, search, export."""

from __future__ import annotations

import math

from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET

from parlab.ingest.trace_lanes import matches, outline, traced_ranks, window
from parlab.publishing.downloads import trace_download

from .addressed import find_run

MAX_TEXT = 200


@require_GET
def trace_view(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Show the lanes of the traced ranks."""
    run = find_run(slug, number)
    if not run.traces.exists():
        return redirect("run-traces", slug, number)
    context = {"section": "experiments", "experiment": run.experiment, "run": run}
    return render(request, "pages/measured/trace_view.html", context)


@require_GET
def trace_outline(_request: HttpRequest, slug: str, number: int) -> HttpResponse:
    return JsonResponse(outline(traced_ranks(find_run(slug, number))))


@require_GET
def trace_window(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Return the bars between ?begin= and ?end= (s)."""
    traced = traced_ranks(find_run(slug, number))
    begin, end = _seconds(request, "begin", traced.begin_s), _seconds(request, "end", traced.end_s)
    if not begin < end:
        return JsonResponse(
            {"error": f"begin {begin:g} is not before end {end:g}; use a window in seconds"}, status=400
        )
    return JsonResponse(window(traced, begin, end))


@require_GET
def trace_search(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Return the events whose name contains ?text=, from ?after= (s) on."""
    run, text = find_run(slug, number), request.GET.get("text", "").strip()[:MAX_TEXT]
    rows = matches(traced_ranks(run), text, _seconds(request, "after", -math.inf)) if text else []
    return JsonResponse({"matches": rows})


@require_GET
def trace_export(_request: HttpRequest, slug: str, number: int) -> StreamingHttpResponse:
    return trace_download(find_run(slug, number))


def _seconds(request: HttpRequest, name: str, default: float) -> float:
    try:
        value = float(request.GET.get(name, ""))
    except ValueError:
        return default
    return value if math.isfinite(value) else default
