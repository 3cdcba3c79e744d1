"""The traces of a run over HTTP."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.ingest.traces import analyses_of
from parlab.traces.breakdown import Window
from parlab.traces.stored import Analysis, meeting_of

from .numbers import find_run
from .serializers import Errors


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


class TracesAnswer(drf.Serializer[Any]):
    """All traced ranks, and what is wrong with them together."""

    ranks = TracedRankItem(many=True)
    matched_collectives = drf.IntegerField()
    problems = drf.ListField(child=drf.CharField())


class RunTraces(APIView):
    """The traces of a run."""

    @extend_schema(
        operation_id="runs_traces",
        responses={200: TracesAnswer, 404: Errors},
        description="The breakdown of the traced steps by rank; see docs/time.md.",
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
        return Response({"ranks": ranks, "matched_collectives": met.matched, "problems": met.problems})


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
