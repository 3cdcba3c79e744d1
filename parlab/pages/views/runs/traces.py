"""Traces of a run: import, time by rank, kernels, collectives and who was late."""

from __future__ import annotations

from typing import IO, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from parlab.charts.runs import traces as chart
from parlab.charts.theme import Drawing
from parlab.ingest.summaries import traces as services
from parlab.ingest.summaries.traces import analyses_of, trace_import
from parlab.lab.models import Run
from parlab.lab.services.access.rights import require_change
from parlab.pages.rows.traces import bars, problems_of, trace_tables
from parlab.pages.views.experiments.figures import csv_response, json_response
from parlab.traces.chunks import BadTrace
from parlab.traces.stored import meeting_of

from .addressed import find_run

MAX_FILES = 256


@require_GET
def run_traces(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    run = find_run(slug, number)
    analyses = analyses_of(run)
    met = meeting_of(analyses)
    context = {
        "section": "experiments",
        "experiment": run.experiment,
        "run": run,
        "stored": list(run.traces.order_by("rank").defer("analysis")),
        "tables": trace_tables(analyses, met) if analyses else None,
        "problems": problems_of(run, analyses, met),
        "limit_mib": settings.UPLOAD_LIMIT_MIB,
        "max_files": MAX_FILES,
    }
    return render(request, "pages/measured/run_traces.html", context)


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def traces_upload(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Analyse uploaded traces, one file per rank; each one is stored, or rejected with a reason."""
    run = find_run(slug, number)
    files = request.FILES.getlist("files")
    if not files or len(files) > MAX_FILES:
        messages.error(request, f"{len(files) or 'No'} files selected; select 1 to {MAX_FILES} traces.")
        return redirect("run-traces", slug, number)
    ranks = []
    for file in files:
        if (file.size or 0) > settings.UPLOAD_LIMIT_MIB << 20:
            messages.error(request, f"{file.name} is larger than {settings.UPLOAD_LIMIT_MIB} MiB; trace fewer steps.")
            continue
        try:
            stored = trace_import(
                run=run, name=file.name or "trace", file=cast("IO[bytes]", file.file), user=cast(User, request.user)
            )
        except BadTrace as error:
            messages.error(request, f"{file.name} was not imported: {error}.")
            continue
        ranks.append(stored.rank)
    if ranks:
        listed = ", ".join(map(str, sorted(set(ranks))))
        messages.success(request, f"Imported the trace{'s' if len(ranks) > 1 else ''} of rank {listed}.")
    if len(set(ranks)) < len(ranks):
        messages.warning(request, "Several files are of the same rank; the last one of each counts.")
    return redirect("run-traces", slug, number)


@require_POST
@permission_required("lab.add_run", raise_exception=True)
def traces_delete(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Remove the analyses of all traces of a run."""
    run = find_run(slug, number)
    require_change(request.user, run)
    count = services.traces_delete(run=run)
    messages.success(request, f"Removed {count} trace{'' if count == 1 else 's'} of run {number}.")
    return redirect("run-traces", slug, number)


def _drawing(run: Run) -> Drawing:
    analyses = analyses_of(run)
    return chart.figure(bars(analyses, meeting_of(analyses)))


@require_GET
def traces_json(_request: HttpRequest, slug: str, number: int) -> HttpResponse:
    return json_response(_drawing(find_run(slug, number)))


@require_GET
def traces_csv(_request: HttpRequest, slug: str, number: int) -> HttpResponse:
    return csv_response(_drawing(find_run(slug, number)).table, f"{slug}-run-{number}-traces.csv")
