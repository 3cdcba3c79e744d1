"""Published versions of reports: exports, pictures, and links that need no login."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import refused
from parlab.api.permissions import user_with
from parlab.api.serializers import Errors
from parlab.lab.models import PictureJob, ReportLink, ReportVersion
from parlab.lab.services.pictures import pictures_request
from parlab.lab.services.public_links import link_create, link_revoke
from parlab.publishing.downloads import version_file
from parlab.publishing.exports import FORMATS
from parlab.publishing.publish import find_version
from parlab.publishing.tasks import send
from parlab.reports.blocks import Content

_FOREIGN = "This report belongs to another user (lab.change_report)."


class DrawingItem(drf.ModelSerializer[PictureJob]):
    """The drawing of pictures by a worker."""

    class Meta:
        model = PictureJob
        fields = ["state", "done", "total", "problem", "created_at", "changed_at"]


class VersionDetail(drf.Serializer[Any]):
    """A published version, whose numbers and figures never change."""

    number = drf.IntegerField()
    title = drf.CharField()
    text = drf.CharField()
    digest = drf.CharField(help_text="SHA-256 of title, text and content.")
    published_by = drf.CharField()
    published_at = drf.DateTimeField()
    url = drf.CharField()
    files = drf.ListField(child=drf.CharField(), help_text="Names of its files: exports, figures, tables, pictures.")
    drawing = DrawingItem(allow_null=True, help_text="The last drawing of its pictures and its PDF.")


class LinkItem(drf.ModelSerializer[ReportLink]):
    """A link to a version that needs no login until it is revoked."""

    url = drf.SerializerMethodField()
    created_by = drf.CharField(source="created_by.username")

    class Meta:
        model = ReportLink
        fields = ["id", "url", "created_by", "created_at", "revoked_at"]

    def get_url(self, link: ReportLink) -> str:
        address = reverse("shared", args=[link.token])
        request: Request | None = self.context.get("request")
        return address if request is None else request.build_absolute_uri(address)


def _editable(request: Request, slug: str, number: int) -> ReportVersion:
    version = find_version(slug, number)
    if not version.report.is_editable_by(cast(User, request.user)):
        raise PermissionDenied(_FOREIGN)
    return version


class OneVersion(APIView):
    """One published version with the names of its files."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="versions_read", responses={200: VersionDetail})
    def get(self, _request: Request, slug: str, number: int) -> Response:
        version = find_version(slug, number)
        drawing = version.jobs.order_by("-pk").first()
        item = {
            **{name: getattr(version, name) for name in ("number", "title", "text", "digest", "published_at")},
            "published_by": version.published_by.get_username(),
            "url": version.get_absolute_url(),
            "files": _names(version),
            "drawing": drawing,
        }
        return Response(VersionDetail(item).data)


def _names(version: ReportVersion) -> list[str]:
    content = Content.model_validate(version.content)
    stored = list(version.files.values_list("name", flat=True))
    exports = [f"report.{ending}" for ending in FORMATS if ending != "pdf"]
    figures = [f"{name}.{ending}" for name, _ in content.figures() for ending in ("json", "csv")]
    return sorted({*exports, *stored, *figures, *(f"{name}.csv" for name, _ in content.tables())})


class VersionFile(APIView):
    """A file of a published version: `report.html`, `report.pdf`, `report.md`, `figure-1.svg`, `figure-1.csv`."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(
        operation_id="versions_file",
        responses={
            (200, "*/*"): OpenApiTypes.BINARY,
            404: Errors,
            (409, "text/plain"): OpenApiTypes.STR,
        },
        description="409: the PDF or a picture is not drawn yet; the text says why.",
    )
    def get(self, _request: Request, slug: str, number: int, name: str) -> HttpResponse:
        return version_file(find_version(slug, number), name)


class VersionDrawing(APIView):
    """Draw pictures and PDF of a version again."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="versions_draw", request=None, responses={202: DrawingItem})
    def post(self, request: Request, slug: str, number: int) -> Response:
        version = _editable(request, slug, number)
        drawing = pictures_request(user=cast(User, request.user), version=version)
        send(drawing.pk)
        return Response(DrawingItem(drawing).data, status=status.HTTP_202_ACCEPTED)


class VersionLinks(APIView):
    """Links to a version for people without an account; POST creates one, or returns the existing one."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="links_list", responses={200: LinkItem(many=True)})
    def get(self, request: Request, slug: str, number: int) -> Response:
        links = find_version(slug, number).links.select_related("created_by")
        return Response(LinkItem(links, many=True, context={"request": request}).data)

    @extend_schema(operation_id="links_create", request=None, responses={201: LinkItem})
    def post(self, request: Request, slug: str, number: int) -> Response:
        user = user_with("lab.add_reportlink", request)
        version = _editable(request, slug, number)
        with refused("number", number):
            link = link_create(subject=version, user=user)
        return Response(LinkItem(link, context={"request": request}).data, status=status.HTTP_201_CREATED)


class OneLink(APIView):
    """DELETE revokes a link permanently."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="links_revoke", responses={204: None})
    def delete(self, request: Request, slug: str, number: int, pk: int) -> Response:
        version, user = find_version(slug, number), cast(User, request.user)
        link = get_object_or_404(ReportLink, pk=pk, version=version)
        if not (version.report.is_editable_by(user) or link.created_by_id == user.pk):
            raise PermissionDenied("This link belongs to another user.")
        link_revoke(link=link, user=user)
        return Response(status=status.HTTP_204_NO_CONTENT)
