"""Error responses of the API: each error has the field, its value, a message and a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.defaults import page_not_found
from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.views import exception_handler

from parlab.lab.models import Experiment
from parlab.series import archive


class Unavailable(exceptions.APIException):
    """Archived points that cannot be read now."""

    status_code: int = status.HTTP_503_SERVICE_UNAVAILABLE


_REMEDIES: dict[type[Exception], str] = {
    exceptions.NotAuthenticated: "send the header `Authorization: Token <token>`; create a token on your account page",
    exceptions.AuthenticationFailed: "check the token, or create a new one on your account page",
    exceptions.PermissionDenied: "ask an administrator for the permission",
    PermissionDenied: "ask an administrator for the permission",
    exceptions.NotFound: "see the list for existing entries",
    Http404: "see the list for existing entries",
    exceptions.MethodNotAllowed: "use a method listed in /api/schema/",
    exceptions.UnsupportedMediaType: "send multipart/form-data",
    exceptions.Throttled: "send fewer requests, or ask an administrator to raise PARLAB_REQUESTS_PER_MINUTE",
    Unavailable: "mend the archive of the server; see docs/understand/measurements.md",
    exceptions.ParseError: "send the fields described in /api/schema/",
}


class Problem(exceptions.APIException):
    """An invalid request; the response names the field, the value and the remedy."""

    status_code: int = status.HTTP_400_BAD_REQUEST

    def __init__(self, message: str, *, field: str, value: Any, remedy: str) -> None:
        super().__init__(message)
        self.error = {"field": field, "value": _short(value), "message": message, "remedy": remedy}


def stated_experiment(slug: str) -> Experiment:
    """Return the experiment that a request names in its body; one of its path is a 404 instead."""
    experiment = Experiment.objects.filter(slug=slug).first()
    if experiment is None:
        remedy = "use a slug of /api/experiments/"
        raise Problem(f"unknown experiment {slug!r}", field="experiment", value=slug, remedy=remedy)
    return experiment


class Changed(Problem):
    """What the request is based on has been changed by somebody else."""

    status_code: int = status.HTTP_412_PRECONDITION_FAILED


class Problems(exceptions.APIException):
    """An invalid request with several errors, each {"field", "value", "message"}."""

    status_code: int = status.HTTP_400_BAD_REQUEST

    def __init__(self, problems: list[dict[str, Any]], *, remedy: str) -> None:
        super().__init__("; ".join(problem["message"] for problem in problems))
        self.errors = [{**problem, "value": _short(problem["value"]), "remedy": remedy} for problem in problems]


class TooLarge(Problem):
    """An upload above the size limit."""

    status_code: int = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE


@contextmanager
def refused(field: str, value: Any = None) -> Iterator[None]:
    """Turn a ValueError of a service, `message; remedy`, into the response to an invalid field."""
    try:
        yield
    except ValueError as error:
        message, _, remedy = str(error).partition("; ")
        raise Problem(message, field=field, value=value, remedy=remedy or "see the message") from error


def handle(problem: Exception, context: dict[str, Any]) -> Response | None:
    """Return every error in one format: {"errors": [{"field", "value", "message", "remedy"}]}."""
    if isinstance(problem, archive.Damaged):
        problem = Unavailable(str(problem))
    response = exception_handler(problem, context)
    if response is None:
        return None
    if isinstance(problem, Problem):
        response.data = {"errors": [problem.error]}
    elif isinstance(problem, Problems):
        response.data = {"errors": problem.errors}
    elif isinstance(problem, exceptions.ValidationError):
        response.data = {"errors": list(_field_errors(problem.detail, context))}
    else:
        remedy = next((text for kind, text in _REMEDIES.items() if isinstance(problem, kind)), "see /api/schema/")
        data: Any = response.data
        message = str(data.get("detail", problem)) if isinstance(data, dict) else str(problem)
        if response.status_code == status.HTTP_403_FORBIDDEN:
            # What refuses knows who can help: the owner, a maintainer, another token.
            message, _, own = message.partition("; ")
            remedy = own or remedy
        response.data = {"errors": [{"field": None, "value": None, "message": message, "remedy": remedy}]}
    return response


def _field_errors(detail: Any, context: dict[str, Any]) -> Iterator[dict[str, Any]]:
    request = context.get("request")
    sent_values = {**request.query_params.dict(), **_form_data(request)} if request is not None else {}
    for field, message in _flattened(detail):
        yield {
            "field": field or None,
            "value": _short(sent_values.get(field)),
            "message": message,
            "remedy": "send the fields described in /api/schema/",
        }


def _flattened(detail: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Give each message with its field; entries of lists and inner fields are named as `topics.0`."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            yield from _flattened(inner, f"{field}.{name}" if field else str(name))
    elif isinstance(detail, list):
        for inner in detail:
            yield from _flattened(inner, field)
    else:
        yield field, str(detail)


def _form_data(request: Any) -> dict[str, Any]:
    return request.data.dict() if hasattr(request.data, "dict") else {}


def _short(value: Any) -> str | None:
    return None if value is None else str(value)[:200]


def unknown_address(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer an address that no view serves: in the format of all errors below /api/, elsewhere with the page."""
    if not request.path.startswith("/api/"):
        return page_not_found(request, exception)
    error = {"field": None, "value": None, "message": "Not found.", "remedy": "use an address of /api/schema/"}
    return JsonResponse({"errors": [error]}, status=status.HTTP_404_NOT_FOUND)
