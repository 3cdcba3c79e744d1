"""Reports: texts with directives, saved by revision and published as versions."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem, refused, stated_experiment
from parlab.api.permissions import user_with
from parlab.api.serializers import Errors
from parlab.lab.models import Report
from parlab.lab.services.reports import Stale, report_create, report_delete, report_save
from parlab.publishing.publish import publish

_LISTED = 500


class ReportRequest(drf.Serializer[Any]):
    """A report to create."""

    title = drf.CharField(max_length=200)
    text = drf.CharField(required=False, default="", allow_blank=True, help_text="Markdown with directives.")
    experiment = drf.SlugField(required=False, allow_null=True, help_text="Slug.")


class ReportChange(drf.Serializer[Any]):
    """A report as it shall be; `revision` is the one that was read."""

    revision = drf.IntegerField()
    title = drf.CharField(max_length=200)
    text = drf.CharField(allow_blank=True)


class PublishRequest(drf.Serializer[Any]):
    revision = drf.IntegerField(help_text="The revision that was read.")


class ReportItem(drf.ModelSerializer[Report]):
    """One report of the list."""

    experiment = drf.CharField(source="experiment.slug", allow_null=True, default=None)
    owner = drf.CharField(source="owner.username")
    url = drf.CharField(source="get_absolute_url")

    class Meta:
        model = Report
        fields = ["slug", "title", "experiment", "owner", "revision", "saved_at", "url"]


class ReportDetail(ReportItem):
    """One report with its text and the numbers of its published versions."""

    versions = drf.SerializerMethodField()

    class Meta(ReportItem.Meta):
        fields = [*ReportItem.Meta.fields, "text", "versions"]

    def get_versions(self, report: Report) -> list[int]:
        return list(report.versions.order_by("number").values_list("number", flat=True))


class VersionItem(drf.Serializer[Any]):
    """A published version, whose numbers and figures never change."""

    number = drf.IntegerField()
    title = drf.CharField()
    url = drf.CharField(source="get_absolute_url")


class Reports(APIView):
    """All reports; POST creates one."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="reports_list", responses={200: ReportItem(many=True)})
    def get(self, _request: Request) -> Response:
        rows = Report.objects.select_related("experiment", "owner").order_by("-saved_at", "-pk")[:_LISTED]
        return Response(ReportItem(rows, many=True).data)

    @extend_schema(operation_id="reports_create", request=ReportRequest, responses={201: ReportDetail, 400: Errors})
    def post(self, request: Request) -> Response:
        user = user_with("lab.add_report", request)
        asked = ReportRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        options = asked.validated_data
        slug = options.get("experiment")
        experiment = stated_experiment(slug) if slug else None
        with refused("title", options["title"]):
            made = report_create(title=options["title"], text=options["text"], experiment=experiment, user=user)
        return Response(ReportDetail(made).data, status=status.HTTP_201_CREATED)


class OneReport(APIView):
    """One report; PUT saves an edit, DELETE deletes it with its published versions."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="reports_read", responses={200: ReportDetail})
    def get(self, _request: Request, slug: str) -> Response:
        return Response(ReportDetail(_report(slug)).data)

    @extend_schema(operation_id="reports_save", request=ReportChange, responses={200: ReportDetail, 400: Errors})
    def put(self, request: Request, slug: str) -> Response:
        report = _editable(request, slug)
        asked = ReportChange(data=request.data)
        asked.is_valid(raise_exception=True)
        try:
            with refused("text"):
                report_save(report=report, user=cast(User, request.user), **asked.validated_data)
        except Stale as stale:
            raise _outdated(stale, asked.validated_data["revision"]) from stale
        return Response(ReportDetail(_report(slug)).data)

    @extend_schema(operation_id="reports_delete", responses={204: None})
    def delete(self, request: Request, slug: str) -> Response:
        report, user = _report(slug), cast(User, request.user)
        if not (user.has_perm("lab.delete_report") or (report.owner_id == user.pk and report.is_editable_by(user))):
            raise PermissionDenied("This report belongs to another user (lab.delete_report).")
        report_delete(report=report)
        return Response(status=status.HTTP_204_NO_CONTENT)


class Publish(APIView):
    """Freeze the text, numbers and figures of a revision as the next version."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="reports_publish", request=PublishRequest, responses={201: VersionItem, 400: Errors})
    def post(self, request: Request, slug: str) -> Response:
        report = _editable(request, slug)
        asked = PublishRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        revision = asked.validated_data["revision"]
        try:
            with refused("text"):
                version = publish(report=report, revision=revision, user=cast(User, request.user))
        except Stale as stale:
            raise _outdated(stale, revision) from stale
        return Response(VersionItem(version).data, status=status.HTTP_201_CREATED)


def _outdated(stale: Stale, revision: int) -> Problem:
    remedy = f"read the report again and use its revision {stale.report.revision}"
    return Problem(str(stale), field="revision", value=revision, remedy=remedy)


def _report(slug: str) -> Report:
    return get_object_or_404(Report.objects.select_related("owner", "saved_by", "experiment"), slug=slug)


def _editable(request: Request, slug: str) -> Report:
    report = _report(slug)
    if not report.is_editable_by(cast(User, request.user)):
        raise PermissionDenied("This report belongs to another user (lab.change_report).")
    return report
