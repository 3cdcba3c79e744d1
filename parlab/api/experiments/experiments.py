"""The API: validate, call a service or read rows, serialise."""

from __future__ import annotations

from typing import Any, cast

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Count, F, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, permissions, status
from rest_framework.pagination import PageNumberPagination
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api import serializers
from parlab.api.errors import Problem, TooLarge
from parlab.api.permissions import MayAddRuns, MayChangeUsers
from parlab.ingest.files import preview
from parlab.ingest.files.imports import Refused, upload_import
from parlab.ingest.summaries import logs
from parlab.lab.models import Attempt, AuditEntry, Experiment, Finding, Run, Source
from parlab.publishing.downloads import source_download
from parlab.tracking.imports import stores_of
from parlab.whole_numbers import whole_number
from runners.wire.protocol import RunState

LOG_BYTES = 1 << 20


class Pages(PageNumberPagination):
    """`?page=2&page_size=500`."""

    page_size = 100
    page_size_query_param = "page_size"
    max_page_size = 1_000


class Imports(APIView):
    """Import a file: its launches or results become runs. Importing the same file again changes nothing."""

    token_scope = "report"
    permission_classes = [permissions.IsAuthenticated, MayAddRuns]
    parser_classes = [MultiPartParser]

    @extend_schema(
        request=serializers.ImportRequest,
        responses={201: preview.Imports, 200: preview.Imports, 400: serializers.Errors, 413: serializers.Errors},
        description="201: something was stored. 200: a dry run, or the experiment already contained this file.",
    )
    def post(self, request: Request) -> Response:
        import_request = serializers.ImportRequest(data=request.data)
        import_request.is_valid(raise_exception=True)
        options = import_request.validated_data
        file, dry_run = options["file"], options["dry_run"]
        limit = settings.UPLOAD_LIMIT_MIB
        if file.size > limit * 2**20:
            raise TooLarge(
                f"{file.name} has {file.size} bytes, more than the limit of {limit} MiB",
                field="file",
                value=file.name,
                remedy="send a part of it, or ask an administrator to raise PARLAB_UPLOAD_LIMIT_MIB",
            )
        try:
            imports = upload_import(
                experiment=_experiment(options.get("experiment")),
                name=file.name,
                stream=file,
                user=cast(User, request.user),
                format=options.get("format") or None,
                dry_run=dry_run,
                stores_of=stores_of,
            )
        except Refused as error:
            message, _, remedy = str(error).partition("; ")
            raise Problem(
                message, field="file", value=file.name, remedy=remedy or "see docs/use/importing.md"
            ) from error
        is_made = not dry_run and any(item.is_new for item in imports)
        answer = preview.Imports(imports=[preview.preview(item, dry_run=dry_run) for item in imports])
        return Response(
            answer.model_dump(mode="json"), status=status.HTTP_201_CREATED if is_made else status.HTTP_200_OK
        )


def _experiment(slug: str | None, field: str = "experiment") -> Experiment | None:
    if not slug:
        return None
    experiment = Experiment.objects.filter(slug=slug).first()
    if experiment is None:
        raise Problem(f"unknown experiment {slug!r}", field=field, value=slug, remedy="use a slug of /api/experiments/")
    return experiment


def _counted(model: type[Run] | type[Finding], **filters: Any) -> Coalesce:
    """Count rows of an experiment or run in a subquery, since two joins would multiply each other."""
    rows = model.objects.filter(**filters).order_by().values(next(iter(filters)))
    return Coalesce(Subquery(rows.annotate(number=Count("pk")).values("number")), 0)


def _experiments() -> QuerySet[Experiment]:
    return Experiment.objects.select_related("owner").annotate(
        run_count=_counted(Run, experiment=OuterRef("pk")),
        findings_open=_counted(Finding, experiment=OuterRef("pk"), acknowledged_at=None),
    )


class Experiments(generics.ListAPIView[Experiment]):
    """All experiments, newest first; `?q=` filters by words in names and questions."""

    serializer_class = serializers.ExperimentItem
    pagination_class = Pages

    def get_queryset(self) -> QuerySet[Experiment]:
        experiments = _experiments().defer("notes", "source").order_by("-created_at", "-pk")
        for word in self.request.GET.get("q", "")[:200].split():
            experiments = experiments.filter(name__icontains=word) | experiments.filter(question__icontains=word)
        return experiments

    @extend_schema(parameters=[OpenApiParameter("q", str, description="Words that the name or question must contain.")])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)


class OneExperiment(generics.RetrieveAPIView[Experiment]):
    serializer_class = serializers.ExperimentDetail
    lookup_field = "slug"

    def get_queryset(self) -> QuerySet[Experiment]:
        return _experiments()

    def get_object(self) -> Experiment:
        experiment: Any = super().get_object()
        states = experiment.runs.order_by().values_list("state").annotate(number=Count("pk"))
        experiment.states = dict(states)
        return experiment  # type: ignore[no-any-return]  # Any, because the model has no attribute states


def _runs(slug: str) -> QuerySet[Run]:
    return annotated_runs(get_object_or_404(Experiment, slug=slug).runs.all()).order_by("number")


def annotated_runs(runs: QuerySet[Run]) -> QuerySet[Run]:
    """Add what rows of runs show beyond their columns."""
    attempts = Attempt.objects.filter(run=OuterRef("pk"), number=OuterRef("attempt_number"))
    return runs.select_related("config", "experiment").annotate(
        findings_open=_counted(Finding, run=OuterRef("pk"), acknowledged_at=None),
        last_step=Subquery(attempts.values("last_step")[:1]),
        planned_steps=F("resolved__train__iterations"),
        stored_mfu=F("summary__mfu"),
        stored_kinds=F("summary__kinds"),
        stored_compute=F("resolved__train__compute"),
        stored_utilization=F("summary__gpu_utilization__mean"),
    )


class SourceFile(APIView):
    """The bytes of an imported file."""

    @extend_schema(
        operation_id="sources_read", responses={(200, "text/plain"): OpenApiTypes.BINARY, 404: serializers.Errors}
    )
    def get(self, _request: Request, slug: str, pk: int) -> StreamingHttpResponse:
        sources = Source.objects.select_related("experiment").defer("document")
        return source_download(get_object_or_404(sources, pk=pk, experiment__slug=slug))


class Runs(generics.ListAPIView[Run]):
    """Runs of an experiment by number; `?state=finished` filters by state."""

    serializer_class = serializers.RunItem
    pagination_class = Pages
    queryset = Run.objects.none()

    def get_queryset(self) -> QuerySet[Run]:
        runs = _runs(self.kwargs["slug"]).defer("resolved", "summary", "launch", "config__data")
        state = self.request.GET.get("state", "")
        return runs.filter(state=one_of("state", state, list(RunState))) if state else runs

    @extend_schema(parameters=[OpenApiParameter("state", str, enum=[state.value for state in RunState])])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)


class OneRun(generics.RetrieveAPIView[Run]):
    serializer_class = serializers.RunDetail
    lookup_field = "number"
    queryset = Run.objects.none()

    def get_queryset(self) -> QuerySet[Run]:
        return _runs(self.kwargs["slug"])


class Log(APIView):
    """Raw output of a run's current attempt, in pieces: of all nodes by time, of one node or of one rank."""

    @extend_schema(
        parameters=[
            OpenApiParameter("from", int, description="Byte offset to read from, in the chosen output."),
            OpenApiParameter("node", int, description="Only the output of a node, 0 to number of nodes - 1."),
            OpenApiParameter("rank", int, description="Only what a rank printed, by its global number."),
        ],
        responses={(200, "text/plain"): OpenApiTypes.STR, 400: serializers.Errors, 404: serializers.Errors},
        description=(
            "Up to 1 MiB; the header Parlab-Next has the offset of the next piece, Parlab-State the state. Follow an"
            " active run on several nodes by node or rank: in the whole log, later output of another node may come"
            " before an offset."
        ),
    )
    def get(self, request: Request, slug: str, number: int) -> HttpResponse:
        run = get_object_or_404(Run.objects.filter(experiment__slug=slug), number=number)
        position = _whole_number("from", request.GET.get("from") or "0", digits=15)
        attempt = run.current_attempt()
        part, problem = logs.requested_part(request.GET, run, attempt)
        if problem is not None:
            raise Problem(problem.message, field=problem.field, value=problem.value, remedy=problem.remedy)
        output = logs.read_from(attempt, part, position, LOG_BYTES)
        headers = {"Parlab-Next": str(position + len(output)), "Parlab-State": run.state}
        return HttpResponse(output, content_type="text/plain; charset=utf-8", headers=headers)


class Findings(generics.ListAPIView[Finding]):
    """Findings, newest first."""

    serializer_class = serializers.FindingItem
    pagination_class = Pages

    def get_queryset(self) -> QuerySet[Finding]:
        findings = Finding.objects.select_related("experiment", "run", "acknowledged_by").order_by("-pk")
        findings = findings.defer("run__resolved", "run__summary", "run__launch", "experiment__notes")
        parameters = self.request.GET
        experiment = _experiment(parameters.get("experiment"))
        if experiment is not None:
            findings = findings.filter(experiment=experiment)
        if run := parameters.get("run", ""):
            findings = findings.filter(run__number=_whole_number("run", run))
        if severity := parameters.get("severity", ""):
            findings = findings.filter(severity=one_of("severity", severity, list(Finding.Severity.values)))
        if is_open := parameters.get("open", ""):
            findings = findings.filter(acknowledged_at__isnull=one_of("open", is_open, ["true", "false"]) == "true")
        return findings

    @extend_schema(
        parameters=[
            OpenApiParameter("experiment", str, description="Slug."),
            OpenApiParameter("run", int, description="Number of a run."),
            OpenApiParameter("severity", str, enum=list(Finding.Severity.values)),
            OpenApiParameter("open", bool, description="true: open findings; false: acknowledged findings."),
        ]
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)


class AuditLog(generics.ListAPIView[AuditEntry]):
    """Who has launched, changed and shared what, newest first; for users who may change users."""

    serializer_class = serializers.AuditItem
    pagination_class = Pages
    permission_classes = [permissions.IsAuthenticated, MayChangeUsers]

    def get_queryset(self) -> QuerySet[AuditEntry]:
        entries, parameters = AuditEntry.objects.all(), self.request.GET
        if action := parameters.get("action", ""):
            entries = entries.filter(action=one_of("action", action, list(AuditEntry.Action.values)))
        if user := parameters.get("user", ""):
            entries = entries.filter(username__iexact=user[:150].replace("\0", ""))
        return entries

    @extend_schema(
        parameters=[
            OpenApiParameter("action", str, enum=list(AuditEntry.Action.values)),
            OpenApiParameter("user", str, description="Name of a user."),
        ]
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)


def one_of(field: str, value: str, choices: list[str]) -> str:
    if value not in choices:
        raise Problem(f"unknown {field} {value!r}", field=field, value=value, remedy=f"use one of {', '.join(choices)}")
    return value


def _whole_number(field: str, value: str, *, digits: int = 9) -> int:
    number = whole_number(value, digits)
    if number is None:
        raise Problem(
            f"{field} {value!r} is not a whole number", field=field, value=value, remedy="use a number like 3"
        )
    return number
