"""Reports: list, editor, publication."""

from __future__ import annotations

import json
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Count, Exists, Max, OuterRef, Q
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from parlab.charts.registry import EXPERIMENT_FIGURES
from parlab.lab.models import Experiment, Report, Snapshot
from parlab.lab.selectors.experiments import experiment_runs, versions_with_results
from parlab.lab.selectors.records import run_records
from parlab.lab.services.pages.dashboards import KINDS
from parlab.lab.services.pictures import pictures_request
from parlab.lab.services.reports import Stale, report_create, report_delete, report_editing, report_save
from parlab.pages.reads.pinned_panels import MAX_DIRECTIVE
from parlab.publishing.downloads import csv_file
from parlab.publishing.drawn import live_page, part_html
from parlab.publishing.figures.catalogue import CURVES_OF_RUNS, RUN_FIGURES
from parlab.publishing.publish import publish
from parlab.publishing.resolve import EVERY_RUN, Resolver, RunFilter
from parlab.publishing.tasks import send
from parlab.reports.blocks import FigureBlock, PartBlock, ProblemBlock
from parlab.reports.directives import KINDS as DIRECTIVES
from parlab.reports.directives import directive
from parlab.reports.templates import TEMPLATES
from parlab.whole_numbers import whole_number

PER_PAGE = 50
MAX_PANELS = 4
"""Maximum number of runs whose panels are drawn for a new report; the gallery draws others."""
_ORDER = "NTF"
"""First letters of the titles of what a person inserts: number, table, figure."""
MAX_EXPERIMENTS = 500
"""Maximum number of experiments in the form; others have a link on their own page."""


def find_report(slug: str) -> Report:
    return get_object_or_404(Report.objects.select_related("owner", "saved_by", "experiment", "editor"), slug=slug)


def _editable(request: HttpRequest, slug: str) -> Report:
    report = find_report(slug)
    if not report.is_editable_by(cast(User, request.user)):
        raise PermissionDenied("this report belongs to another user")
    return report


@require_GET
def reports(request: HttpRequest) -> HttpResponse:
    query = request.GET.get("q", "").replace("\0", "").strip()[:200]
    reports = Report.objects.select_related("owner", "experiment", "saved_by").defer("text")
    for word in query.split():
        reports = reports.filter(
            Q(title__icontains=word) | Q(text__icontains=word) | Q(experiment__name__icontains=word)
        )
    listed = reports.annotate(
        published=Max("versions__number"),
        published_at=Max("versions__published_at"),
        shared=Count("versions__links", filter=Q(versions__links__revoked_at=None), distinct=True),
    )
    page = Paginator(listed.order_by("-saved_at", "-pk"), PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "reports/reports.html", {"section": "reports", "page": page, "report_query": query})


@require_http_methods(["GET", "POST"])
@permission_required("lab.add_report", raise_exception=True)
def new(request: HttpRequest) -> HttpResponse:
    """Show the form; on POST, create a report and open its editor."""
    slug = request.POST.get("experiment", request.GET.get("experiment", "")).replace("\0", "")
    experiment = Experiment.objects.filter(slug=slug).first() if slug else None
    template_key = request.POST.get("template", "blank")
    problem = ""
    if request.method == "POST":
        template = TEMPLATES.get(template_key)
        if template is None:
            problem = f"Unknown template {template_key[:40]!r}. Select a listed template."
        elif slug and experiment is None:
            problem = f"Experiment {slug[:120]} no longer exists. Select another experiment."
        else:
            try:
                report = report_create(
                    title=request.POST.get("title", ""),
                    text=template.text(*_beginning(experiment)),
                    experiment=experiment,
                    user=cast(User, request.user),
                )
                if template_key == "case" and experiment is not None:
                    _ask_for_panels(experiment, cast(User, request.user))
                return redirect("report-edit", report.slug)
            except ValueError as error:
                problem = f"The report was not created: {error}."
    context = {
        "section": "reports",
        "experiments": list(Experiment.objects.values_list("slug", "name")[:MAX_EXPERIMENTS]),
        "selected_experiment": slug,
        "title": request.POST.get("title", experiment.name if experiment else ""),
        "templates": TEMPLATES,
        "template": template_key,
        "problem": problem,
    }
    return render(request, "reports/new.html", context, status=400 if problem else 200)


def _ask_for_panels(experiment: Experiment, user: User) -> None:
    """Queue the panels that a report about single runs starts with, for runs without panels."""
    drawn = Snapshot.objects.filter(run=OuterRef("pk"), kind=Snapshot.Kind.IMAGE, content__has_key="panel")
    if user.has_perm("lab.add_snapshot"):
        for run in experiment.runs.filter(~Exists(drawn)).order_by("number")[:MAX_PANELS]:
            send(pictures_request(user=user, run=run).pk)


def _beginning(experiment: Experiment | None) -> tuple[str, list[dict[str, Any]]]:
    """Return the name and the runs of the experiment, from which a template is filled."""
    if experiment is None:
        return "", []
    runs = experiment_runs(experiment, versions_with_results(experiment, ""))
    return experiment.name, run_records(runs)


@require_GET
def report(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a report with current numbers, and its published versions."""
    report = find_report(slug)
    page = live_page(report, report.text, reverse("report-figure", args=[slug]))
    context = {
        "section": "reports",
        "report": report,
        "page": page,
        "versions": list(report.versions.select_related("published_by").defer("content", "text")),
        "may_edit": report.is_editable_by(cast(User, request.user)),
    }
    return render(request, "reports/report.html", context)


@require_GET
def edit(request: HttpRequest, slug: str) -> HttpResponse:
    report = _editable(request, slug)
    other = report_editing(report=report, user=cast(User, request.user))
    context = {
        "section": "reports",
        "report": report,
        "page": live_page(report, report.text, reverse("report-figure", args=[slug])),
        "other": other,
        "kinds": DIRECTIVES,
        "figures": [*EXPERIMENT_FIGURES, CURVES_OF_RUNS],
        "run_figures": RUN_FIGURES,
        # Values first, then tables, then figures.
        "insertable": sorted(
            (row for row in KINDS.values() if "{{" in row[1]), key=lambda row: _ORDER.index(row[0][0])
        ),
        "experiments": list(Experiment.objects.in_use().values_list("slug", "name")[:MAX_EXPERIMENTS]),
    }
    return render(request, "reports/edit.html", context)


@require_POST
def preview(request: HttpRequest, slug: str) -> HttpResponse:
    """Render the text of the editor without saving it."""
    report = _editable(request, slug)
    page = live_page(report, request.POST.get("text", ""), reverse("report-figure", args=[slug]))
    return render(request, "reports/body.html", {"page": page, "title": request.POST.get("title", report.title)})


@require_POST
def save(request: HttpRequest, slug: str) -> HttpResponse:
    """Save an edit of a revision; 409 with the newer text if another user saved in the meantime."""
    report = _editable(request, slug)
    revision = whole_number(request.POST.get("revision", ""), 9)
    if revision is None:
        return JsonResponse({"problem": "The revision is not a number. Reload the page."}, status=400)
    try:
        saved = report_save(
            report=report,
            title=request.POST.get("title", ""),
            text=request.POST.get("text", ""),
            revision=revision,
            user=cast(User, request.user),
        )
    except Stale as stale:
        return JsonResponse(_stale(stale), status=409)
    except ValueError as problem:
        return JsonResponse({"problem": f"Not saved: {problem}."}, status=400)
    return JsonResponse({"revision": saved.revision, "saved": f"{saved.saved_at:%H:%M:%S}"})


def _stale(stale: Stale) -> dict[str, Any]:
    return {
        "problem": f"Not saved: {stale}. Your text is still here.",
        "revision": stale.report.revision,
        "text": stale.report.text,
        "title": stale.report.title,
        "by": stale.report.saved_by.get_username(),
    }


@require_POST
def editing(request: HttpRequest, slug: str) -> HttpResponse:
    """Record that the editor is open (sent every 15 s), and return who else has it open."""
    report = _editable(request, slug)
    other = report_editing(report=report, user=cast(User, request.user))
    return JsonResponse({"other": other.get_username() if other else "", "revision": report.revision})


@require_GET
def figure(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the figure of a directive, `?d=figure throughput`, or with `&format=csv` its numbers."""
    return figure_of(find_report(slug), request, slug)


def figure_of(report: Report, request: HttpRequest, name: str, only: RunFilter = EVERY_RUN) -> HttpResponse:
    """Return the figure that `?d=` asks for in a report, or its numbers as a file of this name."""
    asked = directive(request.GET.get("d", "")[:MAX_DIRECTIVE])
    block = Resolver(report, only=only).block(asked)
    if isinstance(block, PartBlock):
        return HttpResponse(part_html(block))
    if asked.kind == "part" and isinstance(block, ProblemBlock):
        return HttpResponse(format_html('<p class="report-problem" role="note">Not shown: {}.</p>', block.message))
    if not isinstance(block, FigureBlock):
        message = block.message if isinstance(block, ProblemBlock) else "the directive is not a figure"
        answer: dict[str, Any] = {"figure": None, "caption": "", "empty": message}
    elif request.GET.get("format") == "csv":
        return csv_file(block.numbers, f"{name}.csv")
    else:
        answer = {"figure": block.figure, "caption": block.caption, "empty": None}
    return HttpResponse(json.dumps(answer), content_type="application/json")


@require_POST
def publish_now(request: HttpRequest, slug: str) -> HttpResponse:
    """Publish the displayed revision; refuse if the text has changed since."""
    report = _editable(request, slug)
    revision = whole_number(request.POST.get("revision", ""), 9)
    if revision is None:
        raise Http404("no revision")
    try:
        version = publish(report=report, revision=revision, user=cast(User, request.user))
    except Stale as stale:
        messages.error(request, f"Nothing was published: {stale}. Review the changes, then publish again.")
        return redirect(report)
    except ValueError as problem:
        messages.error(request, f"Nothing was published: {problem}.")
        return redirect(report)
    messages.success(request, f"Published as version {version.number}. Its numbers and figures are frozen.")
    return redirect(version)


@require_POST
def delete(request: HttpRequest, slug: str) -> HttpResponse:
    report = find_report(slug)
    user = cast(User, request.user)
    if not (user.has_perm("lab.delete_report") or (report.owner_id == user.pk and report.is_editable_by(user))):
        raise PermissionDenied("this report belongs to another user")
    report_delete(report=report)
    messages.success(request, f"Deleted {report.title} with its published versions; shared links no longer work.")
    return redirect("reports")
