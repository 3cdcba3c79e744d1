"""The planner over HTTP."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.lab import selectors
from parlab.planner.answer import answer
from parlab.planner.refusals import refusals
from parlab.planner.request import PlanRequest
from parlab.planner.written import WrittenPlan, written

from . import serializers
from .bodies import Body
from .errors import Problem

BODY = Body(refusals, '{"layers": 24}', "docs/planner.md")


class Plans(APIView):
    """Plan a training: time, memory, layouts, days and cost. Nothing is stored or launched."""

    token_scope = "read"
    parser_classes = [JSONParser]

    @extend_schema(
        request=PlanRequest,
        responses={200: WrittenPlan, 400: serializers.Errors},
        description="Omitted fields have the defaults of the schema. See docs/planner.md.",
    )
    def post(self, request: Request) -> Response:
        question, price = selectors.priced(BODY.read(PlanRequest, request, selectors.plan_context()))
        try:
            answered = answer(question, selectors.device_of(question))
            return Response(written(answered, price).model_dump(mode="json"))
        except ValueError as error:
            field = str(error).split(" ")[0]
            value, remedy = question.model_dump().get(field), "use a value that the message names"
            raise Problem(str(error), field=field, value=value, remedy=remedy) from error
