"""Published reports: pages, downloads in all formats, and links that need no login."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required, permission_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from parlab.lab.models import ReportLink, ReportVersion, StoredFile
from parlab.lab.models.access.viewer import viewing
from parlab.lab.services.pictures import is_file_visible, pictures_request
from parlab.lab.services.public_links import link_create, link_in_force, link_revoke
from parlab.publishing.downloads import stored_file, version_file
from parlab.publishing.drawn import frozen_page, live_page
from parlab.publishing.exports import FORMATS
from parlab.publishing.publish import find_version
from parlab.publishing.shared import shared_of
from parlab.publishing.tasks import send

from .reports import figure_of

# A shared page does not leak its URL, and is not cached because its link can be revoked.
PRIVATE = {"Referrer-Policy": "no-referrer", "Cache-Control": "private, no-store", "X-Robots-Tag": "noindex, nofollow"}


@require_GET
def version(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    published = find_version(slug, number)
    links = list(published.links.select_related("created_by", "revoked_by"))
    context = {
        "section": "reports",
        "version": published,
        "report": published.report,
        "page": frozen_page(published, lambda name: reverse("report-file", args=[slug, number, name])),
        **_downloads(published),
        "job": published.jobs.order_by("-pk").first(),
        "links": [(link, request.build_absolute_uri(reverse("shared", args=[link.token]))) for link in links],
        "may_edit": published.report.is_editable_by(cast(User, request.user)),
        "newest": published.report.versions.order_by("-number").values_list("number", flat=True).first(),
    }
    return render(request, "reports/version.html", context)


def _downloads(published: ReportVersion) -> dict[str, Any]:
    """Return the formats of a version, and whether its PDF is drawn."""
    return {"formats": FORMATS, "has_pdf": published.files.filter(name="report.pdf").exists()}


@require_GET
def version_live(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Answer a poll with the progress of the pictures."""
    published = find_version(slug, number)
    job = published.jobs.order_by("-pk").first()
    allowed = published.report.is_editable_by(cast(User, request.user))
    context = {"version": published, "report": published.report, "job": job, "may_edit": allowed}
    context |= _downloads(published)
    return render(request, "reports/version_job.html", context)


@require_POST
def draw_again(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Queue pictures and PDF again, for example after Chromium was installed or a worker was restarted."""
    published = find_version(slug, number)
    user = cast(User, request.user)
    if not published.report.is_editable_by(user):
        raise PermissionDenied("this report belongs to another user")
    send(pictures_request(user=user, version=published).pk)
    return redirect(published)


@require_GET
def file(_request: HttpRequest, slug: str, number: int, name: str) -> HttpResponse:
    return version_file(find_version(slug, number), name)


@require_GET
def picture(_request: HttpRequest, sha256: str) -> HttpResponse:
    stored = get_object_or_404(StoredFile, sha256=sha256, media_type__startswith="image/")
    if not is_file_visible(stored):
        raise Http404("no such picture")
    return stored_file(stored)


@require_POST
@permission_required("lab.add_reportlink", raise_exception=True)
def share(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    published = find_version(slug, number)
    if not published.report.is_editable_by(cast(User, request.user)):
        raise PermissionDenied("this report belongs to another user")
    try:
        link_create(subject=published, user=cast(User, request.user))
    except ValueError as problem:
        messages.error(request, f"Not shared: {problem}.")
        return redirect(published)
    messages.success(request, "Anyone with the link can read this version without login until you revoke it.")
    return redirect(published)


@require_POST
def revoke(request: HttpRequest, slug: str, number: int, pk: int) -> HttpResponse:
    published = find_version(slug, number)
    user = cast(User, request.user)
    link = get_object_or_404(ReportLink, pk=pk, version=published)
    if not (published.report.is_editable_by(user) or link.created_by_id == user.pk):
        raise PermissionDenied("this link belongs to another user")
    link_revoke(link=link, user=user)
    messages.success(request, "Link revoked.")
    return redirect(published)


def _link(token: str) -> ReportLink:
    link = link_in_force(token)
    if link is None:
        raise Http404("no such link")
    return link


def _private(response: HttpResponse) -> HttpResponse:
    for name, value in PRIVATE.items():
        response.headers[name] = value
    return response


@require_GET
@login_not_required
def shared(request: HttpRequest, token: str) -> HttpResponse:
    """Show what a link is to, and nothing else of the site, to anyone with the token."""
    link = _link(token)
    published = link.version
    if published is None:
        return _live(request, link)
    drawn = published.files.filter(name__endswith=".svg").values_list("name", flat=True)
    pictures = {name.removesuffix(".svg"): reverse("shared-file", args=[token, name]) for name in drawn}
    page = frozen_page(published, lambda name: reverse("shared-file", args=[token, name]), pictures=pictures)
    context = {"version": published, "page": page, "is_drawn": bool(pictures) or not page.has_figures, "token": token}
    context |= _downloads(published) | {"is_embedded": bool(request.GET.get("embed"))}
    response = _private(render(request, "reports/shared.html", context))
    return _embeddable(response) if request.GET.get("embed") else response


def _embeddable(response: HttpResponse) -> HttpResponse:
    """Let other sites frame a published page: who has its link may read it anyway, and it has no controls."""
    # What the decorators of both headers set for their middlewares.
    vars(response).update(xframe_options_exempt=True, _csp_replace={"frame-ancestors": ["*"]})
    return response


@require_GET
@login_not_required
def shared_file(request: HttpRequest, token: str, name: str) -> HttpResponse:
    """Return a file of a published version, or the figure of a live page."""
    link = _link(token)
    if link.version is not None:
        return _private(version_file(link.version, name))
    shown = shared_of(link)
    if name != "figure" or not shown.has(request.GET.get("d", "")[:2_000]):
        raise Http404("no such file")
    with viewing(shown.viewer):
        return _private(figure_of(shown.report, request, "figure"))


def _live(request: HttpRequest, link: ReportLink) -> HttpResponse:
    shown = shared_of(link)
    with viewing(shown.viewer):
        page = live_page(shown.report, shown.text, reverse("shared-file", args=[link.token, "figure"]))
        context = {"title": shown.report.title, "page": page, "link": link}
        return _private(render(request, "reports/shared_live.html", context))
