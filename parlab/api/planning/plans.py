"""The planner over HTTP."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from pydantic import ValidationError
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api import serializers
from parlab.api.bodies import Body
from parlab.api.errors import Problem
from parlab.lab.selectors.analysis.plans import device_of, plan_context, priced
from parlab.planner.requests.answer import answer
from parlab.planner.requests.answer_json import WrittenPlan, written
from parlab.planner.requests.fitting import read_question
from parlab.planner.requests.refusals import refusals
from parlab.planner.requests.request import PlanRequest

BODY = Body(refusals, '{"layers": 24}', "docs/use/planner.md")


class Plans(APIView):
    """Plan a training: time, memory, layouts, days and cost. Nothing is stored or launched."""

    token_scope = "read"
    parser_classes = [JSONParser]

    @extend_schema(
        request=PlanRequest,
        responses={200: WrittenPlan, 400: serializers.Errors},
        description="Omitted fields have the defaults of the schema. See docs/use/planner.md.",
    )
    def post(self, request: Request) -> Response:
        stated = _question(request)
        question, price = priced(stated)
        try:
            answered = answer(question, device_of(question))
            return Response(written(answered, price, stated.assumed).model_dump(mode="json"))
        except ValueError as error:
            field = str(error).split(" ")[0]
            value, remedy = question.model_dump().get(field), "use a value that the message names"
            raise Problem(str(error), field=field, value=value, remedy=remedy) from error


def _question(request: Request) -> PlanRequest:
    """Return the question; where defaults do not fit the given sizes, with those that do."""
    try:
        return read_question(request.data, plan_context())
    except ValidationError:
        return BODY.read(PlanRequest, request, plan_context())
