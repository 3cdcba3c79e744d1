"""Questions about a cluster, and configurations from pasted text."""

from __future__ import annotations

from typing import Any

from django.http import Http404, QueryDict
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem, Problems, refused
from parlab.api.permissions import user_with
from parlab.api.serializers import Errors
from parlab.fleet.questions.catalogue import QUESTIONS
from parlab.fleet.questions.form import Question
from parlab.fleet.questions.launch import question_launch
from parlab.ingest import pasted_config as pasted


class QuestionField(drf.Serializer[Any]):
    name = drf.CharField()
    title = drf.CharField()
    help = drf.CharField(allow_blank=True)
    default = drf.CharField(allow_blank=True)


class QuestionItem(drf.Serializer[Any]):
    """A question that can be asked."""

    key = drf.CharField()
    question = drf.CharField()
    description = drf.CharField()
    inputs = QuestionField(many=True)


class AskedAnswer(drf.Serializer[Any]):
    """The experiment that answers."""

    experiment = drf.CharField(help_text="Slug.")
    created = drf.ListField(child=drf.IntegerField(), help_text="Numbers of its runs.")
    url = drf.CharField(help_text="Address of the answer's page.")


class PastedRequest(drf.Serializer[Any]):
    text = drf.CharField(max_length=1_000_000, help_text="A command line, or a configuration as JSON.")


class PastedAnswer(drf.Serializer[Any]):
    """Values by `section__field`; fields that are left out keep theirs."""

    values = drf.DictField()
    summary = drf.CharField()


class Questions(APIView):
    """The questions with their inputs."""

    @extend_schema(operation_id="questions_list", responses={200: QuestionItem(many=True)})
    def get(self, _request: Request) -> Response:
        rows = [
            {"key": key, "question": str(kind.heading), "description": str(kind.description), "inputs": _inputs(kind())}
            for key, kind in QUESTIONS.items()
        ]
        return Response(rows)


def _inputs(form: Question) -> list[dict[str, str]]:
    rows = []
    for name, field in form.fields.items():
        default = field.prepare_value(form[name].value())
        rows.append(
            {
                "name": name,
                "title": str(field.label or name),
                "help": str(field.help_text),
                "default": "" if default is None else str(default),
            }
        )
    return rows


class Ask(APIView):
    """Ask a question: an experiment is created and launched. Inputs that are left out have their defaults."""

    token_scope = "launch"
    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(operation_id="questions_ask", request=OpenApiTypes.OBJECT, responses={201: AskedAnswer, 400: Errors})
    def post(self, request: Request, key: str) -> Response:
        user = user_with("lab.add_run", request)
        if key not in QUESTIONS:
            raise Http404(f"unknown question {key}")
        body: Any = request.data
        if not isinstance(body, dict) or isinstance(body, QueryDict):
            raise Problem("the body is not a JSON object", field="body", value=None, remedy='send {"gpus": 2}, or {}')
        defaults = {row["name"]: row["default"] for row in _inputs(QUESTIONS[key]())}
        unknown = next((name for name in body if name not in defaults), None)
        if unknown is not None:
            remedy = f"use {', '.join(defaults)}"
            raise Problem(f"unknown input {unknown[:80]!r}", field=unknown[:80], value=body[unknown], remedy=remedy)
        form = QUESTIONS[key]({**defaults, **{name: _text(value) for name, value in body.items()}})
        if not form.is_valid():
            problems = [
                {"field": field, "value": body.get(field), "message": str(message)}
                for field, messages in form.errors.items()
                for message in messages
            ]
            raise Problems(problems, remedy="see GET /api/questions/")
        with refused("body"):
            experiment, launch = question_launch(form=form, user=user)
        numbers = [run.number for run in launch.created]
        url = f"{experiment.get_absolute_url()}answer/"
        return Response({"experiment": experiment.slug, "created": numbers, "url": url}, status=status.HTTP_201_CREATED)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


class Pasted(APIView):
    """Read a command line or a configuration into values by `section__field`. Nothing is stored."""

    permission_classes = [permissions.IsAuthenticated]

    @extend_schema(
        operation_id="configurations_read", request=PastedRequest, responses={200: PastedAnswer, 400: Errors}
    )
    def post(self, request: Request) -> Response:
        if not (request.user.has_perm("lab.add_config") or request.user.has_perm("lab.change_config")):
            raise PermissionDenied("Your account has no permission for this (lab.add_config).")
        asked = PastedRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        with refused("text"):
            reading = pasted.read(asked.validated_data["text"])
        return Response({"values": reading.values, "summary": reading.summary})
