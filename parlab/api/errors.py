"""What the API answers when it cannot do what was asked: always the field, its value, what is wrong, what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.views import exception_handler

_REMEDIES: dict[type[Exception], str] = {
    exceptions.NotAuthenticated: "send the header `Authorization: Token <yours>`; the page of your account makes one",
    exceptions.AuthenticationFailed: "check the token, or make a new one on the page of your account",
    exceptions.PermissionDenied: "ask an administrator for the right",
    PermissionDenied: "ask an administrator for the right",
    exceptions.NotFound: "look at the list for what there is",
    Http404: "look at the list for what there is",
    exceptions.MethodNotAllowed: "use a method that /api/schema/ names",
    exceptions.UnsupportedMediaType: "send multipart/form-data",
    exceptions.ParseError: "send what /api/schema/ describes",
}


class Problem(exceptions.APIException):
    """A request that makes no sense, with everything that a person needs to mend it."""

    status_code: int = status.HTTP_400_BAD_REQUEST

    def __init__(self, message: str, *, field: str, value: Any, remedy: str) -> None:
        super().__init__(message)
        self.error = {"field": field, "value": _short(value), "message": message, "remedy": remedy}


class Problems(exceptions.APIException):
    """Several things that are wrong with one request: {"field", "value", "message"} each."""

    status_code: int = status.HTTP_400_BAD_REQUEST

    def __init__(self, problems: list[dict[str, Any]], *, remedy: str) -> None:
        super().__init__("; ".join(problem["message"] for problem in problems))
        self.errors = [{**problem, "value": _short(problem["value"]), "remedy": remedy} for problem in problems]


class TooLarge(Problem):
    """More than may be uploaded."""

    status_code: int = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE


def handle(problem: Exception, context: dict[str, Any]) -> Response | None:
    """Answer every refusal in one shape: {"errors": [{"field", "value", "message", "remedy"}]}."""
    response = exception_handler(problem, context)
    if response is None:
        return None
    if isinstance(problem, Problem):
        response.data = {"errors": [problem.error]}
    elif isinstance(problem, Problems):
        response.data = {"errors": problem.errors}
    elif isinstance(problem, exceptions.ValidationError):
        response.data = {"errors": list(_of_fields(problem.detail, context))}
    else:
        remedy = next((text for kind, text in _REMEDIES.items() if isinstance(problem, kind)), "see /api/schema/")
        data: Any = response.data
        message = str(data.get("detail", problem)) if isinstance(data, dict) else str(problem)
        response.data = {"errors": [{"field": None, "value": None, "message": message, "remedy": remedy}]}
    return response


def _of_fields(detail: Any, context: dict[str, Any]) -> Iterator[dict[str, Any]]:
    request = context.get("request")
    given = {**request.query_params.dict(), **_data(request)} if request is not None else {}
    for field, messages in (detail if isinstance(detail, dict) else {"": detail}).items():
        for message in messages if isinstance(messages, list) else [messages]:
            yield {
                "field": field or None,
                "value": _short(given.get(field)),
                "message": str(message),
                "remedy": "send what /api/schema/ describes",
            }


def _data(request: Any) -> dict[str, Any]:
    return request.data.dict() if hasattr(request.data, "dict") else {}


def _short(value: Any) -> str | None:
    return None if value is None else str(value)[:200]
