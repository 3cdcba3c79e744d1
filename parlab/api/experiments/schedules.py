"""Warm-up slopes of a pipeline run, simulated for its network; where its wall time went."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.advice.recovery import Interruption
from parlab.api.errors import refused
from parlab.api.permissions import user_with
from parlab.api.serializers import Errors
from parlab.ingest.summaries.goodput import run_goodput
from parlab.ingest.summaries.recovery import run_recovery
from parlab.lab.services.schedules import slope_save, slopes

from .numbers import find_run


class SlopeItem(drf.Serializer[Any]):
    """A simulated schedule."""

    code = drf.CharField(help_text="For POST.")
    slope = drf.IntegerField(help_text="Warm-up slope of 1F1B.")
    wire = drf.CharField(help_text="Precision of messages: same as the model, or bf16.")
    iteration_s = drf.FloatField()
    held = drf.IntegerField(help_text="Micro batches in flight.")
    gap_to_bound = drf.FloatField(help_text="Share above the lower bound.")


class SlopeRequest(drf.Serializer[Any]):
    code = drf.CharField(max_length=40, help_text="One that GET returns.")


class SavedSlope(drf.Serializer[Any]):
    version = drf.IntegerField(help_text="Of the configuration.")
    note = drf.CharField()


class GoodputPart(drf.Serializer[Any]):
    key = drf.CharField()
    title = drf.CharField()
    seconds = drf.FloatField()


class RecoveryPartItem(drf.Serializer[Any]):
    key = drf.CharField()
    title = drf.CharField(help_text="With the earlier parts that it contains.")
    seconds = drf.FloatField()


class InterruptionItem(drf.Serializer[Any]):
    """An interruption, between attempts or within one; its parts add up to it."""

    name = drf.CharField()
    reason = drf.CharField(allow_blank=True)
    begin_s = drf.FloatField(help_text="Unix seconds: the end of the last step before it.")
    seconds = drf.FloatField()
    parts = RecoveryPartItem(many=True)
    ranks = drf.ListField(child=drf.IntegerField(), allow_null=True, help_text="Before and after, if known.")
    repeated_steps = drf.IntegerField()
    advice = drf.CharField(allow_blank=True, help_text="What would shorten the longest part.")


class HourItem(drf.Serializer[Any]):
    begin_s = drf.FloatField(help_text="Unix seconds.")
    share = drf.FloatField(help_text="Of the hour, in steps that lasted.")


class GoodputAnswer(drf.Serializer[Any]):
    """Where the wall time of a run went, over all attempts; the parts add up to it."""

    reason = drf.CharField(allow_blank=True, help_text="Why there are no parts; empty if there are.")
    parts = GoodputPart(many=True)
    share = drf.FloatField(allow_null=True, help_text="Share of the wall time that became lasting progress.")
    attempts = drf.IntegerField()
    failures = drf.IntegerField()
    lost_steps = drf.IntegerField()
    checkpoint_s = drf.FloatField(allow_null=True, help_text="Median time of a checkpoint.")
    joules = drf.FloatField(allow_null=True)
    joules_per_token = drf.FloatField(allow_null=True)
    interruptions = InterruptionItem(many=True)
    hours = HourItem(many=True)


class RunSchedule(APIView):
    """Simulated warm-up slopes of a pipeline run; POST saves one as the next configuration."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="runs_slopes", responses={200: SlopeItem(many=True)})
    def get(self, _request: Request, slug: str, number: int) -> Response:
        rows = [
            {
                "code": code,
                "slope": outcome.plan.warmup_slope,
                "wire": outcome.wire,
                "iteration_s": outcome.simulation.iteration_s,
                "held": outcome.held,
                "gap_to_bound": outcome.gap_to_bound,
            }
            for code, outcome in slopes(find_run(slug, number)).items()
        ]
        return Response(rows)

    @extend_schema(operation_id="runs_slope_save", request=SlopeRequest, responses={201: SavedSlope, 400: Errors})
    def post(self, request: Request, slug: str, number: int) -> Response:
        user = user_with("lab.add_config", request)
        run = find_run(slug, number)
        asked = SlopeRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        code = asked.validated_data["code"]
        with refused("code", code):
            config = slope_save(run=run, code=code, user=user)
        return Response({"version": config.version, "note": config.note}, status=status.HTTP_201_CREATED)


class RunGoodput(APIView):
    """Where the wall time of a run went."""

    @extend_schema(operation_id="runs_goodput", responses={200: GoodputAnswer})
    def get(self, _request: Request, slug: str, number: int) -> Response:
        run = find_run(slug, number)
        result, recovery = run_goodput(run), run_recovery(run)
        whole, energy = result.goodput, result.energy
        return Response(
            {
                "reason": result.reason,
                "parts": [part._asdict() for part in whole.parts] if whole else [],
                "share": whole.share if whole else None,
                "attempts": whole.attempts if whole else 0,
                "failures": whole.failures if whole else 0,
                "lost_steps": whole.lost_steps if whole else 0,
                "checkpoint_s": result.checkpoint_s,
                "joules": energy.joules if energy else None,
                "joules_per_token": energy.joules_per_token if energy else None,
                "interruptions": [_interruption(each) for each in recovery.interruptions],
                "hours": [{"begin_s": hour.begin_s, "share": hour.share} for hour in recovery.hours],
            }
        )


def _interruption(each: Interruption) -> dict[str, Any]:
    parts = [{"key": part.key, "title": part.title, "seconds": part.seconds} for part in each.parts]
    names = ("name", "reason", "begin_s", "seconds", "ranks", "repeated_steps", "advice")
    return {name: getattr(each, name) for name in names} | {"parts": parts}
