"""The waterfall of a run over HTTP."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.advice.waterfalls.terms import TERMS
from parlab.advice.waterfalls.waterfall import Waterfall
from parlab.api.serializers import Errors
from parlab.lab.selectors.analysis.waterfalls import run_waterfalls

from .numbers import find_run


class TermItem(drf.Serializer[Any]):
    """One term; `ns` of all terms add up to `total_ns` exactly."""

    key = drf.CharField()
    title = drf.CharField()
    ns = drf.IntegerField(help_text="Nanoseconds; only of `unexplained` below 0.")
    seconds = drf.FloatField()
    share = drf.FloatField(help_text="Of the step, 0 to 1.")
    kind = drf.ChoiceField(["measured", "computed", "derived", "remainder"])
    basis = drf.CharField()
    definition = drf.CharField()
    reference = drf.CharField(help_text="Source of the definition.")


class AbsentTerm(drf.Serializer[Any]):
    """A term without a time."""

    key = drf.CharField()
    reason = drf.CharField()


class WaterfallItem(drf.Serializer[Any]):
    """The terms of a step, from the time at the peak to what is unexplained."""

    title = drf.CharField()
    total_ns = drf.IntegerField()
    total_s = drf.FloatField()
    terms = TermItem(many=True)
    absent = AbsentTerm(many=True)
    notes = drf.ListField(child=drf.CharField())


class WaterfallsAnswer(drf.Serializer[Any]):
    """The measured waterfall of a run and the planner's; null with the reason."""

    measured = WaterfallItem(allow_null=True)
    reason = drf.CharField(allow_blank=True)
    predicted = WaterfallItem(allow_null=True)
    prediction_reason = drf.CharField(allow_blank=True)


class RunTime(APIView):
    """Where the time of a run's steps goes."""

    @extend_schema(
        operation_id="runs_time",
        parameters=[OpenApiParameter("prediction", bool, description="false: omit the planner's waterfall.")],
        responses={200: WaterfallsAnswer, 404: Errors},
        description="See docs/use/time.md for the terms.",
    )
    def get(self, request: Request, slug: str, number: int) -> Response:
        falls = run_waterfalls(find_run(slug, number), with_prediction=request.GET.get("prediction") != "false")
        return Response(
            {
                "measured": _written(falls.measured),
                "reason": falls.reason,
                "predicted": _written(falls.predicted),
                "prediction_reason": falls.prediction_reason,
            }
        )


def _written(waterfall: Waterfall | None) -> dict[str, Any] | None:
    if waterfall is None:
        return None
    terms = [
        {
            "key": part.key,
            "title": part.title,
            "ns": part.ns,
            "seconds": part.seconds,
            "share": waterfall.share(part.key),
            "kind": part.kind,
            "basis": part.basis,
            "definition": TERMS[part.key].definition,
            "reference": TERMS[part.key].source,
        }
        for part in waterfall.parts
    ]
    absent = [{"key": key, "reason": reason} for key, reason in waterfall.absent]
    return {
        "title": waterfall.title,
        "total_ns": waterfall.total_ns,
        "total_s": waterfall.total_s,
        "terms": terms,
        "absent": absent,
        "notes": list(waterfall.notes),
    }
