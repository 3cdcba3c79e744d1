"""Imported files: content, original bytes, pictures."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_GET

from parlab.lab.models import Experiment, Picture, Source
from parlab.lab.selectors.findings import experiment_findings
from parlab.lab.selectors.sources import source_lines
from parlab.pages.palette.rows import marked
from parlab.pages.reads.import_text import source_text
from parlab.pages.rows.findings import finding_rows
from parlab.pages.rows.sources import source_views
from parlab.publishing.downloads import UNSTYLED, safe_name, source_download
from parlab.whole_numbers import whole_number

# Image types that browsers display without running scripts. All others, SVG above all, are only downloaded.
PICTURES = {"image/png", "image/jpeg", "image/gif", "image/webp"}


def _find(slug: str, pk: int) -> Source:
    sources = Source.objects.select_related("experiment").defer("document")
    return get_object_or_404(sources, pk=pk, experiment__slug=slug)


@require_GET
def source(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    experiment = get_object_or_404(Experiment, slug=slug)
    findings = experiment_findings(experiment)
    views = source_views(experiment, findings, only=pk)
    if not views:
        raise Http404(f"experiment {slug} has no file {pk}")
    number = whole_number(request.GET.get("run", ""), 9)
    run = experiment.runs.filter(source=pk, number=number).first() if number is not None else None
    own_findings = [finding for finding in findings if finding.source_id == pk]
    context = {
        "section": "experiments",
        "experiment": experiment,
        "source": views[0],
        "rows": finding_rows(own_findings),
        "runs": list(experiment.runs.filter(source=pk).only("number", "label", "first_line", "last_line")[:500]),
        "read": source_text(get_object_or_404(Source, pk=pk), run),
        "next": request.path,
    }
    return render(request, "pages/files/source.html", context)


@require_GET
def lines(request: HttpRequest, slug: str, pk: int, first: int, last: int) -> HttpResponse:
    """Show some lines of a file with their context; `?find=` marks a text in the lines."""
    source = _find(slug, pk)
    last = min(max(first, last), first + 500)
    excerpt = source_lines(source, first, last, around=20)
    if not excerpt:
        raise Http404(f"{source.name} has no line {first}")
    context = {"section": "experiments", "source": source, "first": first, "last": last}
    find = request.GET.get("find", "").strip()[:200]
    context["lines"] = [(line, marked(line.text, [find] if line.is_requested and find else [])) for line in excerpt]
    return render(request, "pages/files/source_lines.html", context)


@require_GET
def raw(_request: HttpRequest, slug: str, pk: int) -> StreamingHttpResponse:
    return source_download(_find(slug, pk))


@require_GET
def picture(_request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    stored = get_object_or_404(Picture, pk=pk, source__experiment__slug=slug)
    is_drawn = stored.media_type in PICTURES
    response = HttpResponse(
        bytes(stored.data), content_type=stored.media_type if is_drawn else "application/octet-stream"
    )
    for name, value in UNSTYLED.items():
        response.headers[name] = value
    name = safe_name(stored.reference.replace("\\", "/").rpartition("/")[2])
    response.headers["Content-Disposition"] = content_disposition_header(not is_drawn, name) or "attachment"
    return response
