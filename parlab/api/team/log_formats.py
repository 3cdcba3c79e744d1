"""Log formats that the team taught parlab."""

from __future__ import annotations

from typing import Any, cast

from django.contrib.auth.models import User
from django.http import Http404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from pydantic import ValidationError
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem, Problems, refused
from parlab.api.serializers import Errors
from parlab.formats.learnt.learnt import Learnt
from parlab.ingest.readings.guesses import upload_guess
from parlab.lab.models import LogFormat
from parlab.lab.selectors.log_formats import log_format_rows, log_format_versions
from parlab.lab.services.access.rights import require_change
from parlab.lab.services.log_formats import log_format_delete, log_format_save

_REMEDY = "send a definition like that of GET, or of `python -m parlab.formats FILE --learn`"


class FormatItem(drf.Serializer[Any]):
    """The newest version of a format."""

    name = drf.CharField()
    version = drf.IntegerField()
    created_by = drf.CharField()
    created_at = drf.DateTimeField()
    files = drf.IntegerField(help_text="Files that were read with any of its versions.")


class FormatDetail(drf.Serializer[Any]):
    """One version of a format."""

    name = drf.CharField()
    version = drf.IntegerField()
    versions = drf.ListField(child=drf.IntegerField(), help_text="All versions, the newest first.")
    created_by = drf.CharField()
    created_at = drf.DateTimeField()
    definition = drf.DictField(help_text="Columns of the format; the JSON file of the page.")


class GuessRequest(drf.Serializer[Any]):
    file = drf.FileField(help_text="A log of an unknown format.")


class GuessAnswer(drf.Serializer[Any]):
    """What a file of an unknown format may be; nothing is stored."""

    definition = drf.DictField(allow_null=True, help_text="For PUT, perhaps edited; null: no numbers repeat.")
    reason = drf.CharField(allow_blank=True)


class MayImport(permissions.BasePermission):
    """Log formats belong to imports."""

    message = "Your account has no permission to import files (lab.add_run)."

    def has_permission(self, request: Request, view: APIView) -> bool:
        return request.user.has_perm("lab.add_run")


class LogFormats(APIView):
    """All log formats by name."""

    permission_classes = [permissions.IsAuthenticated, MayImport]

    @extend_schema(operation_id="formats_list", responses={200: FormatItem(many=True)})
    def get(self, _request: Request) -> Response:
        rows = [{**_head(row.newest), "version": row.newest.version, "files": row.files} for row in log_format_rows()]
        return Response(FormatItem(rows, many=True).data)


class OneLogFormat(APIView):
    """One log format; PUT saves a definition as its next version, DELETE deletes it, its runs stay."""

    permission_classes = [permissions.IsAuthenticated, MayImport]

    @extend_schema(
        operation_id="formats_read",
        parameters=[OpenApiParameter("version", int, description="By default the newest.")],
        responses={200: FormatDetail},
    )
    def get(self, request: Request, name: str) -> Response:
        return Response(_detail(name, request.GET.get("version", "")))

    @extend_schema(
        operation_id="formats_save",
        request=OpenApiTypes.OBJECT,
        responses={200: FormatDetail, 400: Errors},
        description="The body is a definition; one that is unchanged stays the same version.",
    )
    def put(self, request: Request, name: str) -> Response:
        body: Any = request.data
        if not isinstance(body, dict):
            raise Problem("the body is not a JSON object", field="body", value=None, remedy=_REMEDY)
        try:
            definition = Learnt.model_validate({**body, "name": name})
        except ValidationError as error:
            raise Problems([_problem(each) for each in error.errors()], remedy=_REMEDY) from error
        with refused("name", name):
            saved = log_format_save(definition=definition, user=cast(User, request.user))
        return Response(_detail(saved.name, str(saved.version)))

    @extend_schema(operation_id="formats_delete", responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        require_change(request.user, *log_format_versions(name))
        if not log_format_delete(name=name):
            raise Http404(f"no log format {name}")
        return Response(status=status.HTTP_204_NO_CONTENT)


class FormatGuess(APIView):
    """Guess the format of a file that no reader knows. Nothing is stored."""

    permission_classes = [permissions.IsAuthenticated, MayImport]
    parser_classes = [MultiPartParser]

    @extend_schema(operation_id="formats_guess", request=GuessRequest, responses={200: GuessAnswer, 400: Errors})
    def post(self, request: Request) -> Response:
        asked = GuessRequest(data=request.data)
        asked.is_valid(raise_exception=True)
        file = asked.validated_data["file"]
        guess = upload_guess(stream=file, name=file.name)
        definition = guess.learnt.model_dump(mode="json") if guess.learnt else None
        return Response({"definition": definition, "reason": guess.reason})


def _head(version: LogFormat) -> dict[str, Any]:
    return {
        "name": version.name,
        "created_by": version.created_by.get_username(),
        "created_at": version.created_at,
    }


def _detail(name: str, number: str) -> dict[str, Any]:
    versions = log_format_versions(name.replace("\0", ""))
    chosen = next((each for each in versions if number in ("", str(each.version))), None)
    if chosen is None:
        raise Http404(f"no log format {name} with this version")
    definition = Learnt.model_validate(chosen.definition).model_dump(mode="json")
    numbers = [each.version for each in versions]
    return {**_head(chosen), "version": chosen.version, "versions": numbers, "definition": definition}


def _problem(error: Any) -> dict[str, Any]:
    field = ".".join(str(part) for part in error["loc"]) or "body"
    return {"field": field, "value": str(error.get("input"))[:200], "message": error["msg"]}
