"""The log on the page of a run: its last lines, search, download; of all ranks, of one node or of one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from parlab.ingest.summaries import logs
from parlab.ingest.summaries.log_steps import log_steps
from parlab.lab.models import Attempt, Run
from parlab.lab.selectors.layouts import rank_layout
from parlab.pages.reads.runs.log_curves import log_curve
from parlab.pages.views.partial import UNCHANGED
from parlab.series.log import has_rank_streams
from parlab.series.log_search import ERROR, text_pattern
from parlab.whole_numbers import whole_number

from .addressed import find_attempt, find_run
from .heads import page_context

LOG_LINES = 300


def log_context(query: Mapping[str, str], run: Run, attempt: Attempt) -> dict[str, Any]:
    """Return the last lines of the chosen part of a log, and the other parts that can be chosen."""
    layout, is_separated = rank_layout(run, attempt), has_rank_streams(attempt.pk)
    part, problem = logs.requested_part(query, run, attempt, has_rank_streams=is_separated)
    has_nodes = len(layout.nodes) > 1
    title = layout.place_of(part.rank) if part.rank is not None else ""
    if not title and part.node_rank is not None:
        title = f"node {layout.nodes[part.node_rank]}"
    return {
        "log": logs.tail(attempt, part, LOG_LINES),
        "log_seen": attempt.committed,
        "log_part": part,
        "log_problem": problem,
        "log_title": title,
        "log_nodes": list(enumerate(layout.nodes)) if has_nodes else [],
        "log_last_rank": layout.ranks - 1 if is_separated and layout.ranks > 1 else None,
    }


def _requested(request: HttpRequest, slug: str, number: int) -> tuple[Run, Attempt]:
    run = find_run(slug, number)
    attempt = find_attempt(request, run)
    if attempt is None:
        raise Http404("published figures have no log")
    return run, attempt


@require_GET
def run_log(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Show the log; answer a poll with its last lines, or a choice with the whole region.

    `?find=` and `?errors=1` show the lines that match, `?step=` those of a step; `?curve=1` is the curve above the log.
    """
    run, attempt = _requested(request, slug, number)
    if request.GET.get("curve"):
        curve = log_curve(run, attempt, LOG_LINES)
        return render(request, "pages/run/log_tab/log_curve.html", {"run": run, "attempt": attempt, "curve": curve})
    is_poll, is_region = "seen" in request.GET, bool(request.GET.get("region"))
    if is_poll and request.GET.get("seen") == str(attempt.committed) and not run.is_final:
        return HttpResponse(status=UNCHANGED)
    if is_poll or is_region:
        part = {"run": run, "attempt": attempt, "is_live": not run.is_final}
        template = "pages/run/log_tab/log_lines.html" if is_poll else "pages/run/log_tab/log_region.html"
        return render(request, template, part | log_context(request.GET, run, attempt))
    context = page_context(request, run, attempt, "run-log") | log_context(request.GET, run, attempt)
    context["is_silent"] = run.is_final and not context["log"] and not context["log_title"]
    context["has_curve"] = run.is_final and attempt.last_step is not None and not context["is_silent"]
    return render(request, "pages/run/log_tab/log.html", context | _matches(request, run, attempt))


@require_GET
def run_log_find(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Search the chosen part: `?find=text`, `?errors=1` for lines that look like errors, `?line=7` or `?step=3`."""
    run, attempt = _requested(request, slug, number)
    context = {"run": run, "attempt": attempt, **_matches(request, run, attempt)}
    return render(request, "pages/run/log_tab/log_matches.html", context)


def _matches(request: HttpRequest, run: Run, attempt: Attempt) -> dict[str, Any]:
    part, _ = logs.requested_part(request.GET, run, attempt)
    text, line = request.GET.get("find", "").strip()[:200], request.GET.get("line", "")
    wants_errors = bool(request.GET.get("errors"))
    context: dict[str, Any] = {"text": text, "wants_errors": wants_errors, "log_part": part}
    if (step := whole_number(request.GET.get("step", ""), 11)) is not None:
        context |= _lines_of_step(run, attempt, part, step)
    elif (number := whole_number(line, 11)) is not None:
        context |= {"around": logs.around(attempt, part, number), "line": number}
        context["at_step"] = log_steps(run, attempt).steps.get(number) if run.is_final else None
    elif text or wants_errors:
        context["search"] = logs.find(attempt, part, ERROR if wants_errors else text_pattern(text))
    return context


def _lines_of_step(run: Run, attempt: Attempt, part: logs.LogPart, step: int) -> dict[str, Any]:
    stated = log_steps(run, attempt).of(step)
    around = logs.around(attempt, part, stated[0]) if stated else []
    marked = [row._replace(is_meant=row.number in stated) for row in around]
    return {"around": marked, "line": stated[0] if stated else None, "step": step, "at_step": step}


@require_GET
def run_log_download(request: HttpRequest, slug: str, number: int) -> StreamingHttpResponse:
    """Stream the chosen part as a text file."""
    run, attempt = _requested(request, slug, number)
    part, problem = logs.requested_part(request.GET, run, attempt)
    if problem is not None:
        raise Http404(f"{problem.message}; {problem.remedy}")
    suffix = f"-{part.query.replace('=', '-')}" if part.query else ""
    name = f"{slug}-run-{number}-attempt-{attempt.number}{suffix}.log"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
    return StreamingHttpResponse(
        logs.whole_text(attempt, part), content_type="text/plain; charset=utf-8", headers=headers
    )
