"""Simulated schedules over HTTP."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from pydantic import ValidationError
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.planner.schedule import Scenario, WrittenAnswer, refusals, written

from . import serializers
from .errors import Problem, Problems


class Simulations(APIView):
    """Simulate pipeline schedules on a network; nothing is stored and nothing is run."""

    parser_classes = [JSONParser]

    @extend_schema(
        request=Scenario,
        responses={200: WrittenAnswer, 400: serializers.Errors},
        parameters=[OpenApiParameter("timeline", bool, description="true: every pass and message too.")],
        description="Fields that are left out have the default of the schema. See docs/simulation.md.",
    )
    def post(self, request: Request) -> Response:
        data: Any = request.data
        if not isinstance(data, dict):
            raise Problem(
                "the body is no JSON object", field="body", value=data, remedy='send one like {"stages": 3}, or {}'
            )
        try:
            scenario = Scenario.model_validate(data)
        except ValidationError as error:
            raise Problems([one._asdict() for one in refusals(error)], remedy="see docs/simulation.md") from error
        found = written(scenario, with_timeline=request.query_params.get("timeline") == "true")
        return Response(found.model_dump(mode="json", exclude_none=True))
