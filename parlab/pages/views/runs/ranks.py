"""The section of a run's page about its ranks: heat map, slowest ranks and nodes over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from parlab.charts.runs import ranks as chart
from parlab.lab.models import Attempt, Run
from parlab.pages.reads import ranks
from parlab.pages.views.partial import UNCHANGED
from parlab.publishing.figures.windows import Window
from parlab.series.store import SeriesInfo

from .addressed import find_attempt, find_run


def ranks_context(
    query: Mapping[str, str], run: Run, attempt: Attempt | None, series: list[SeriesInfo] | None = None
) -> dict[str, Any]:
    """Return what the section shows; nothing for a run with fewer than two ranks."""
    if attempt is None:
        return {}
    source = ranks.source_of(run, attempt, series)
    choice = ranks.choice_of(query, source.metrics, source.layout)
    numbers = {info.rank for info in source.series if info.rank >= 0 and info.metric in ranks.FROM_STEPS}
    if choice is None or len(numbers) < 2:
        return {}
    reading = ranks.reading_of(source, choice, Window(0))
    node = "" if choice.node_rank is None else str(choice.node_rank)
    return {
        "rank_choice": choice,
        "rank_measures": list(ranks.measures(source.metrics).items()),
        "rank_nodes": list(enumerate(source.layout.nodes)) if len(source.layout.nodes) > 1 else [],
        "rank_query": f"phase={choice.measure}&ranks_of={node}",
        "rank_title": ranks.measures(source.metrics)[choice.measure],
        "slow_rows": [(slow, chart.value_text(slow), *map(chart.above_text, _shares(slow))) for slow in reading.slow],
        "ranks_seen": f"{attempt.last_step}-{run.state}",
    }


def _shares(slow: chart.Slow) -> tuple[float, float]:
    return slow.above, slow.node_above


@require_GET
def run_ranks(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Answer a poll or a choice with the table of the slowest ranks."""
    run = find_run(slug, number)
    attempt = find_attempt(request, run)
    if attempt is None:
        raise Http404("published figures have no ranks")
    if request.GET.get("seen") == f"{attempt.last_step}-{run.state}":
        return HttpResponse(status=UNCHANGED)
    context = {"run": run, "experiment": run.experiment, "attempt": attempt, "is_live": not run.is_final}
    return render(request, "pages/run_ranks_slow.html", context | ranks_context(request.GET, run, attempt))
