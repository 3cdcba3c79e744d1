"""Differences between two runs."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_GET

from parlab.lab.selectors.comparison.differences import Side, attempt_side, other_side, run_difference, suggestions
from parlab.lab.selectors.filters import MAX_LENGTH
from parlab.lab.selectors.other_runs import other_runs
from parlab.pages.views.partial import is_partial
from parlab.pages.views.runs.addressed import find_attempt, find_run


@require_GET
def difference(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Show a run next to `?with=7`, `slug/7`, `attempt-1` or `v2`; `?q=` searches for runs."""
    run = find_run(slug, number)
    attempt = find_attempt(request, run)
    query = request.GET.get("q", "")[:MAX_LENGTH]
    context: dict[str, Any] = {
        "section": "experiments",
        "experiment": run.experiment,
        "run": run,
        "attempt": attempt,
        "q": query,
        "matches": other_runs(run, query) if query.strip() else None,
    }
    if is_partial(request):
        response = render(request, "pages/compare/run_difference_matches.html", context)
    else:
        context |= _beside(attempt_side(run, attempt), request.GET.get("with", ""))
        response = render(request, "pages/compare/run_difference.html", context)
    patch_vary_headers(response, ["HX-Request"])
    return response


def _beside(mine: Side, requested: str) -> dict[str, Any]:
    """Return the other side: the side named in the URL, or the first suggestion."""
    suggested = suggestions(mine.run, mine.attempt)
    address = requested or next((side.address for side in suggested), "")
    theirs = other_side(mine.run, address) if address else None
    return {
        "mine": mine,
        "theirs": theirs,
        "suggestions": suggested,
        "missing": requested if requested and theirs is None else "",
        "difference": run_difference(mine, theirs) if theirs else None,
    }
