"""The tab Ranks of a run: heat map, parts, timeline and log of one step, with one cursor in the address."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from parlab.charts.runs import ranks as chart
from parlab.lab.models import Attempt, Run
from parlab.pages.reads.runs import ranks
from parlab.pages.reads.runs.rank_cursors import rank_view
from parlab.pages.views.partial import UNCHANGED
from parlab.publishing.figures.windows import Window

from .addressed import find_attempt, find_run
from .heads import page_context


@require_GET
def run_ranks(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Show the ranks at the cursor of `?step=7&rank=2`; answer a poll only if there are new steps."""
    run = find_run(slug, number)
    attempt = find_attempt(request, run)
    if attempt is None:
        raise Http404("published figures have no ranks")
    if request.GET.get("seen") == _seen(run, attempt):
        return HttpResponse(status=UNCHANGED)
    context = page_context(request, run, attempt, "run-ranks") | _ranks_context(request, run, attempt)
    return render(request, "pages/run/ranks.html", context)


def _seen(run: Run, attempt: Attempt) -> str:
    return f"{attempt.last_step}-{run.state}"


def _ranks_context(request: HttpRequest, run: Run, attempt: Attempt) -> dict[str, Any]:
    source = ranks.source_of(run, attempt)
    choice = ranks.choice_of(request.GET, source.metrics, source.layout)
    if choice is None:
        return {"view": None}
    node = "" if choice.node_rank is None else str(choice.node_rank)
    kept = [(name, request.GET[name]) for name in ("attempt", "phase", "ranks_of") if request.GET.get(name)]
    reading = ranks.reading_of(source, choice, Window(0))
    return {
        "view": rank_view(source, choice, request.GET, kept),
        "rank_choice": choice,
        "rank_measures": list(ranks.measures(source.metrics).items()),
        "rank_nodes": list(enumerate(source.layout.nodes)) if len(source.layout.nodes) > 1 else [],
        "rank_query": f"attempt={attempt.number}&phase={choice.measure}&ranks_of={node}",
        "rank_title": ranks.measures(source.metrics)[choice.measure],
        "slow_rows": [_slow_row(slow) for slow in reading.slow],
        "ranks_seen": _seen(run, attempt),
    }


def _slow_row(slow: chart.Slow) -> tuple[chart.Slow, str, str, str]:
    return slow, chart.value_text(slow), chart.above_text(slow.above), chart.above_text(slow.node_above)
