"""Simulated schedules over HTTP."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api import serializers
from parlab.api.bodies import Body
from parlab.planner.schedule import Scenario, WrittenAnswer, refusals, written

BODY = Body(refusals, '{"stages": 3}', "docs/understand/network.md")


class Simulations(APIView):
    """Simulate pipeline schedules on a network. Nothing is stored or launched."""

    token_scope = "read"
    parser_classes = [JSONParser]

    @extend_schema(
        request=Scenario,
        responses={200: WrittenAnswer, 400: serializers.Errors},
        parameters=[OpenApiParameter("timeline", bool, description="true: include every pass and message.")],
        description="Omitted fields have the defaults of the schema. See docs/understand/network.md.",
    )
    def post(self, request: Request) -> Response:
        scenario = BODY.read(Scenario, request)
        answer = written(scenario, with_timeline=request.query_params.get("timeline") == "true")
        return Response(answer.model_dump(mode="json", exclude_none=True))
