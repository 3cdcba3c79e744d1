"""Published reports: pages, downloads in all formats, and links that need no login."""

from __future__ import annotations

import json
from typing import cast

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required, permission_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_GET, require_POST

from parlab.lab.models import ReportLink, ReportVersion, StoredFile
from parlab.lab.services.pictures import pictures_request
from parlab.lab.services.reports import report_link_create, report_link_revoke
from parlab.publishing.drawn import frozen_page
from parlab.publishing.exports import FORMATS, Export, export
from parlab.publishing.tasks import send
from parlab.reports.blocks import Content, FigureBlock

from .reports import csv_file, may_edit

# A stored file may only be displayed: no scripts, no requests.
HARMLESS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
            "X-Content-Type-Options": "nosniff"}  # fmt: skip
# A shared page does not leak its URL, and is not cached because its link can be revoked.
PRIVATE = {"Referrer-Policy": "no-referrer", "Cache-Control": "private, no-store", "X-Robots-Tag": "noindex, nofollow"}


def find_version(slug: str, number: int) -> ReportVersion:
    versions = ReportVersion.objects.select_related("report", "report__owner", "published_by")
    return get_object_or_404(versions, report__slug=slug, number=number)


@require_GET
def version(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    published = find_version(slug, number)
    links = list(published.links.select_related("created_by", "revoked_by"))
    context = {
        "section": "reports",
        "version": published,
        "report": published.report,
        "page": frozen_page(published, lambda name: reverse("report-file", args=[slug, number, name])),
        "formats": FORMATS,
        "job": published.jobs.order_by("-pk").first(),
        "links": [(link, request.build_absolute_uri(reverse("shared", args=[link.token]))) for link in links],
        "may_edit": may_edit(cast(User, request.user), published.report),
        "newest": published.report.versions.order_by("-number").values_list("number", flat=True).first(),
    }
    return render(request, "reports/version.html", context)


@require_GET
def version_live(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Answer a poll with the progress of the pictures."""
    published = find_version(slug, number)
    job = published.jobs.order_by("-pk").first()
    allowed = may_edit(cast(User, request.user), published.report)
    context = {"version": published, "report": published.report, "job": job, "may_edit": allowed}
    return render(request, "reports/version_job.html", context)


@require_POST
def draw_again(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Queue pictures and PDF again, for example after Chromium was installed or a worker was restarted."""
    published = find_version(slug, number)
    user = cast(User, request.user)
    if not may_edit(user, published.report):
        raise PermissionDenied("this report belongs to another user")
    send(pictures_request(user=user, version=published).pk)
    return redirect(published)


@require_GET
def file(_request: HttpRequest, slug: str, number: int, name: str) -> HttpResponse:
    return version_file(find_version(slug, number), name)


def version_file(version: ReportVersion, name: str) -> HttpResponse:
    """Send a part of a version: data, numbers or picture of a figure, a table, or the whole report in a format."""
    stem, _, ending = name.replace("\0", "").rpartition(".")
    content = Content.model_validate(version.content)
    stored = version.files.select_related("file").filter(name=name.replace("\0", "")).first()
    if stored is not None:
        return stored_file(stored.file, download=f"{version.report.slug}-v{version.number}-{name}")
    figures, tables = dict(content.figures()), dict(content.tables())
    if ending == "json" and stem in figures:
        block: FigureBlock = figures[stem]
        answer = {"figure": block.figure, "caption": block.caption, "empty": None}
        return HttpResponse(json.dumps(answer), content_type="application/json")
    if ending == "csv" and stem in (figures | tables):
        return csv_file((figures | tables)[stem].numbers, f"{version.report.slug}-v{version.number}-{name}")
    if stem == "report" and ending in FORMATS:
        return _export(export(version, ending))
    raise Http404(f"version {version.number} has no {name}")


def _export(exported: Export) -> HttpResponse:
    if exported.problem:
        return HttpResponse(exported.problem, status=409, content_type="text/plain; charset=utf-8")
    response = HttpResponse(exported.data, content_type=exported.media_type)
    response.headers["Content-Disposition"] = content_disposition_header(True, exported.name) or "attachment"
    for name, value in HARMLESS.items():
        response.headers[name] = value
    return response


@require_GET
def picture(_request: HttpRequest, sha256: str) -> HttpResponse:
    return stored_file(get_object_or_404(StoredFile, sha256=sha256, media_type__startswith="image/"))


def stored_file(file: StoredFile, download: str = "") -> HttpResponse:
    """Send a stored file. It never changes, so browsers may cache it."""
    response = HttpResponse(bytes(file.data), content_type=file.media_type)
    for name, value in HARMLESS.items():
        response.headers[name] = value
    response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
    if download:
        is_page = file.media_type == "application/pdf"
        response.headers["Content-Disposition"] = content_disposition_header(is_page, download) or "attachment"
    return response


@require_POST
@permission_required("lab.add_reportlink", raise_exception=True)
def share(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    published = find_version(slug, number)
    if not may_edit(cast(User, request.user), published.report):
        raise PermissionDenied("this report belongs to another user")
    report_link_create(version=published, user=cast(User, request.user))
    messages.success(request, "Anyone with the link can read this version without login until you revoke it.")
    return redirect(published)


@require_POST
def revoke(request: HttpRequest, slug: str, number: int, pk: int) -> HttpResponse:
    published = find_version(slug, number)
    user = cast(User, request.user)
    link = get_object_or_404(ReportLink, pk=pk, version=published)
    if not (may_edit(user, published.report) or link.created_by_id == user.pk):
        raise PermissionDenied("this link belongs to another user")
    report_link_revoke(link=link, user=user)
    messages.success(request, "Link revoked.")
    return redirect(published)


def _shared(token: str) -> ReportVersion:
    links = ReportLink.objects.select_related("version__report", "version__published_by")
    return get_object_or_404(links, token=token, revoked_at=None).version


def _private(response: HttpResponse) -> HttpResponse:
    for name, value in PRIVATE.items():
        response.headers[name] = value
    return response


@require_GET
@login_not_required
def shared(request: HttpRequest, token: str) -> HttpResponse:
    """Show a published version, and nothing else of the site, to anyone with the token."""
    published = _shared(token)
    drawn = published.files.filter(name__endswith=".svg").values_list("name", flat=True)
    pictures = {name.removesuffix(".svg"): reverse("shared-file", args=[token, name]) for name in drawn}
    page = frozen_page(published, lambda name: reverse("shared-file", args=[token, name]), pictures=pictures)
    context = {"version": published, "page": page, "is_drawn": bool(pictures) or not page.has_figures, "token": token}
    return _private(render(request, "reports/shared.html", {**context, "formats": FORMATS}))


@require_GET
@login_not_required
def shared_file(_request: HttpRequest, token: str, name: str) -> HttpResponse:
    return _private(version_file(_shared(token), name))
