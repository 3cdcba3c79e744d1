"""Findings of an experiment, the explanations of the rules, and the actions to acknowledge and reopen findings."""

from __future__ import annotations

from typing import cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from parlab.lab.models import Experiment, Finding
from parlab.lab.selectors.findings import experiment_findings
from parlab.lab.services.findings import finding_acknowledge, finding_reopen
from parlab.pages.reads.rules import rules_page
from parlab.pages.rows.findings import finding_rows, with_excerpts
from parlab.pages.views.partial import is_partial
from parlab.whole_numbers import whole_numbers

PER_PAGE = 100
MAX_SHOWN = 20
"""Maximum number of findings in a panel."""


@require_GET
def findings(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the findings of an experiment, or with `?id=3,5` some of them, which a script shows beside a number."""
    experiment = get_object_or_404(Experiment, slug=slug)
    listed = experiment_findings(experiment)
    total = len(listed)
    ids = set(whole_numbers(request.GET.get("id", "").split(",")))
    if ids:
        listed = [finding for finding in listed if finding.pk in ids]
    partial = is_partial(request)
    page = Paginator(listed, MAX_SHOWN if partial else PER_PAGE).get_page(request.GET.get("page"))
    rows = finding_rows(page.object_list)
    context = {
        "section": "experiments",
        "experiment": experiment,
        "rows": with_excerpts(rows) if ids else rows,
        "page": page,
        "is_part": bool(ids),
        "total": total,
        "next": request.path,
    }
    response = render(
        request, "pages/experiments/findings_panel.html" if partial else "pages/experiments/findings.html", context
    )
    patch_vary_headers(response, ["HX-Request"])
    return response


@require_GET
def rules(request: HttpRequest) -> HttpResponse:
    """Show docs/understand/findings.md, which explains the rules."""
    page = settings.SHIPPED_DIR / "docs" / "understand" / "findings.md"
    context = {"section": "rules", **rules_page(page)}
    return render(request, "pages/experiments/rules.html", context)


def _find(slug: str, pk: int) -> Finding:
    return get_object_or_404(Finding.objects.select_related("experiment"), pk=pk, experiment__slug=slug)


def _back(request: HttpRequest, finding: Finding) -> HttpResponseRedirect:
    """Redirect to the page of the button, if it is on this site."""
    target = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(target, {request.get_host()}, require_https=request.is_secure()):
        target = reverse("findings", args=[finding.experiment.slug])
    return HttpResponseRedirect(target)


@require_POST
@permission_required("lab.change_finding", raise_exception=True)
def acknowledge(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    finding = _find(slug, pk)
    try:
        finding_acknowledge(
            finding=finding, user=cast(User, request.user), reason=request.POST.get("reason", "")[:2000]
        )
    except ValueError as error:
        messages.error(request, f"The finding was not acknowledged: {error}.")
    else:
        messages.success(request, "Finding acknowledged. It stays in the list, and its triangle turns grey.")
    return _back(request, finding)


@require_POST
@permission_required("lab.change_finding", raise_exception=True)
def reopen(request: HttpRequest, slug: str, pk: int) -> HttpResponse:
    finding = _find(slug, pk)
    finding_reopen(finding=finding)
    messages.success(request, "Finding reopened.")
    return _back(request, finding)
