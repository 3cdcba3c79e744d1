"""Adding a part of a page to a dashboard or a report."""

from __future__ import annotations

from typing import cast

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_POST

from parlab.lab.services.pages.dashboards import dashboard_add
from parlab.lab.services.reports import report_add, report_create
from parlab.pages.reads.pinned_panels import experiment_of_page, part_directive, report_of
from parlab.publishing.page_parts import page_part
from parlab.reports.directives import directive


@require_POST
def add(request: HttpRequest) -> HttpResponse:
    """Add the part `panel` of the address `page`; what it is about decides which dashboard or report gets it."""
    user, is_report = cast(User, request.user), request.POST.get("to") == "report"
    if not user.has_perm("lab.add_report" if is_report else "pages.add_dashboard"):
        raise PermissionDenied
    name, page, title = (request.POST.get(field, "").replace("\0", "").strip() for field in ("panel", "page", "title"))
    text = part_directive(name, page, title[:120])
    asked = directive(text.strip("{} "))
    if asked.problem:
        return JsonResponse({"problem": "this cannot be shown elsewhere; add another part"}, status=400)
    experiment = experiment_of_page(page)
    try:
        is_low = asked.kind == "part" and page_part(name, page, title).is_sentence
        if not is_report:
            shown = dashboard_add(experiment=experiment, title=title or "Figure", text=text, user=user, is_low=is_low)
            return JsonResponse({"title": shown.name, "url": shown.get_absolute_url()})
        report = report_of(experiment, user)
        if report is None:
            name = experiment.name if experiment else f"Figures of {user.get_username()}"
            report = report_create(title=name, text=f"{text}\n", experiment=experiment, user=user)
        else:
            report = report_add(report=report, text=text, user=user)
    except ValueError as problem:
        return JsonResponse({"problem": str(problem)}, status=400)
    return JsonResponse({"title": report.title, "url": report.get_absolute_url()})
