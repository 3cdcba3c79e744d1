"""The traces of a run over HTTP."""

from __future__ import annotations

from typing import Any, cast

from django.conf import settings
from django.contrib.auth.models import User
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import TooLarge, refused
from parlab.api.permissions import MayAddRuns
from parlab.api.serializers import Errors
from parlab.ingest.summaries import traces as services
from parlab.ingest.summaries.traces import analyses_of
from parlab.lab.services.access.rights import require_change
from parlab.publishing.downloads import trace_download
from parlab.traces.breakdown import Window
from parlab.traces.stored import Analysis, meeting_of, node_lateness

from .numbers import find_run


class TraceWindow(drf.Serializer[Any]):
    """A step; its parts add up to `total_s`. Times in seconds."""

    step = drf.IntegerField(allow_null=True)
    total_s = drf.FloatField()
    compute_s = drf.FloatField()
    exposed_communication_s = drf.FloatField()
    copies_s = drf.FloatField(help_text="That neither compute nor communication covers.")
    idle_host_s = drf.FloatField()
    idle_launched_s = drf.FloatField()
    communication_s = drf.FloatField(help_text="Hidden or exposed; no part of the sum.")


class TraceKernel(drf.Serializer[Any]):
    name = drf.CharField()
    kind = drf.CharField(help_text="Class of the kernel.")
    calls = drf.IntegerField()
    total_s = drf.FloatField()


class TracedRankItem(drf.Serializer[Any]):
    """The trace of a rank."""

    rank = drf.IntegerField()
    host = drf.CharField(allow_blank=True)
    device = drf.CharField(allow_blank=True)
    mean_step = TraceWindow()
    steps = TraceWindow(many=True)
    kernels = TraceKernel(many=True)
    memory_peak_bytes = drf.FloatField(allow_null=True)
    late = drf.IntegerField(help_text="How often the rank arrived last at a collective.")
    late_by_s = drf.FloatField()
    waits_s = drf.FloatField()
    clock_offset_s = drf.FloatField()
    problems = drf.ListField(child=drf.CharField())


class NodeLatenessItem(drf.Serializer[Any]):
    """A node for whose ranks the others waited at collectives."""

    node = drf.CharField()
    ranks = drf.IntegerField()
    late = drf.IntegerField(help_text="How often one of its ranks arrived last.")
    late_by_s = drf.FloatField()
    share = drf.FloatField(help_text="Of all such waits, 0 to 1.")


class PeriodLatenessItem(drf.Serializer[Any]):
    """A part of the traced time, with the rank for which the others waited longest."""

    begin_s = drf.FloatField()
    end_s = drf.FloatField()
    collectives = drf.IntegerField()
    rank = drf.IntegerField()
    late = drf.IntegerField(help_text="How often this rank arrived last.")
    late_by_s = drf.FloatField()


class TracesAnswer(drf.Serializer[Any]):
    """All traced ranks, and what is wrong with them together."""

    ranks = TracedRankItem(many=True)
    nodes = NodeLatenessItem(many=True, help_text="The worst first; empty unless the traces are of several nodes.")
    periods = PeriodLatenessItem(many=True)
    matched_collectives = drf.IntegerField()
    problems = drf.ListField(child=drf.CharField())


class TraceRequest(drf.Serializer[Any]):
    file = drf.FileField(help_text="A trace of torch.profiler (JSON, also .gz) or of another supported profiler.")


class TraceItem(drf.Serializer[Any]):
    """A stored trace."""

    rank = drf.IntegerField()
    name = drf.CharField()
    size = drf.IntegerField(help_text="Bytes of the file.")
    sha256 = drf.CharField()
    problems = drf.ListField(child=drf.CharField())


class RunTraces(APIView):
    """The traces of a run; POST analyses the trace of one rank, DELETE removes all."""

    permission_classes = [permissions.IsAuthenticated, MayAddRuns]
    parser_classes = [MultiPartParser]

    @extend_schema(
        operation_id="runs_traces",
        responses={200: TracesAnswer, 404: Errors},
        description="The breakdown of the traced steps by rank; see docs/use/time.md.",
    )
    def get(self, _request: Request, slug: str, number: int) -> Response:
        analyses = analyses_of(find_run(slug, number))
        met = meeting_of(analyses)
        skews = {row.rank: row for row in met.ranks}
        ranks = []
        for rank, analysis in analyses.items():
            skew = skews.get(rank)
            ranks.append(
                {
                    **_written(rank, analysis),
                    "late": skew.late if skew else 0,
                    "late_by_s": skew.late_by_s if skew else 0.0,
                    "waits_s": skew.waits_s if skew else 0.0,
                    "clock_offset_s": met.offsets_s.get(rank, 0.0),
                }
            )
        answer = {"ranks": ranks, "matched_collectives": met.matched, "problems": met.problems}
        answer["nodes"] = [row._asdict() for row in node_lateness(analyses, met)]
        answer["periods"] = [row._asdict() for row in met.periods]
        return Response(answer)

    @extend_schema(
        operation_id="traces_add",
        request=TraceRequest,
        responses={201: TraceItem, 400: Errors, 413: Errors},
        description="A trace replaces an earlier one of its rank.",
    )
    def post(self, request: Request, slug: str, number: int) -> Response:
        run = find_run(slug, number)
        asked = TraceRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        file = asked.validated_data["file"]
        if file.size > settings.UPLOAD_LIMIT_MIB << 20:
            problem = f"{file.name} is larger than {settings.UPLOAD_LIMIT_MIB} MiB"
            raise TooLarge(problem, field="file", value=file.name, remedy="trace fewer steps")
        with refused("file", file.name):
            stored = services.trace_import(run=run, name=file.name, file=file.file, user=cast(User, request.user))
        item = {name: getattr(stored, name) for name in ("rank", "name", "size", "sha256")}
        return Response({**item, "problems": stored.analysis["problems"]}, status=status.HTTP_201_CREATED)

    @extend_schema(operation_id="traces_delete", responses={204: None})
    def delete(self, request: Request, slug: str, number: int) -> Response:
        run = find_run(slug, number)
        require_change(request.user, run)
        services.traces_delete(run=run)
        return Response(status=status.HTTP_204_NO_CONTENT)


class TraceExport(APIView):
    """A Chrome trace of all ranks on one clock, packed."""

    @extend_schema(
        operation_id="traces_export", responses={(200, "application/gzip"): OpenApiTypes.BINARY, 404: Errors}
    )
    def get(self, _request: Request, slug: str, number: int) -> StreamingHttpResponse:
        return trace_download(find_run(slug, number))


def _written(rank: int, analysis: Analysis) -> dict[str, Any]:
    kernels = [
        {"name": row.name, "kind": row.group, "calls": row.calls, "total_s": row.total_s} for row in analysis.kernels
    ]
    return {
        "rank": rank,
        "host": analysis.host,
        "device": analysis.device,
        "mean_step": _window(analysis.per_step()),
        "steps": [_window(step) for step in analysis.steps],
        "kernels": kernels,
        "memory_peak_bytes": analysis.memory_peak_bytes,
        "problems": analysis.problems,
    }


def _window(window: Window) -> dict[str, Any]:
    return {
        "step": window.step,
        "total_s": window.total_s,
        "compute_s": window.compute_s,
        "exposed_communication_s": window.exposed_s,
        "copies_s": window.exposed_copy_s,
        "idle_host_s": window.idle_host_s,
        "idle_launched_s": window.idle_kernel_s,
        "communication_s": window.communication_s,
    }
