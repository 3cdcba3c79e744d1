"""Requests and errors in MLflow's shape."""

from __future__ import annotations

import base64
import binascii
import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.contrib.auth import authenticate
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from parlab.lab import services as lab
from parlab.tracking.artifacts import BadArtifact
from parlab.tracking.runs import Conflict

logger = logging.getLogger(__name__)

JSON = dict[str, Any]
_STATUS = {
    "INVALID_PARAMETER_VALUE": 400,
    "RESOURCE_ALREADY_EXISTS": 400,
    "BAD_REQUEST": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "RESOURCE_DOES_NOT_EXIST": 404,
    "ENDPOINT_NOT_FOUND": 404,
    "NOT_IMPLEMENTED": 501,
}
_MAX_INTEGER = 2**63 - 1


class MlflowError(Exception):
    """An answer to a request that cannot be carried out: an error code of MLflow and a message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> MlflowError:
    """Return the error for a parameter with an invalid value."""
    return MlflowError("INVALID_PARAMETER_VALUE", message)


def missing(what: str, name: str) -> MlflowError:
    """Return the error for something that does not exist."""
    return MlflowError("RESOURCE_DOES_NOT_EXIST", f"No {what} {name[:200]!r} exists")


@dataclass(frozen=True)
class Call:
    """One request: who sends it and with which fields, from the body or the query."""

    user: User
    data: Mapping[str, Any]
    http: HttpRequest

    def text(self, name: str, default: str | None = None, *, at_most: int = 20_000) -> str:
        """Return a text field; without a default it is required and not empty."""
        value = self.data.get(name)
        if value is None or value == "":
            if default is None:
                raise invalid(f"Missing value for required parameter '{name}'")
            return default
        if not isinstance(value, str):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise invalid(f"Invalid value {_short(value)} for parameter '{name}': expected a string")
            value = str(value)
        if len(value) > at_most:
            raise invalid(
                f"Invalid value for parameter '{name}': {len(value)} characters exceed the maximum length of {at_most}"
            )
        return clean(value)

    def whole(self, name: str, default: int | None = None, *, at_least: int = 0, at_most: int = _MAX_INTEGER) -> int:
        """Return an integer field, which JSON may write as a number or a text."""
        value = self.data.get(name)
        if value is None or value == "":
            if default is None:
                raise invalid(f"Missing value for required parameter '{name}'")
            return default
        number = integer(value)
        if number is None or not at_least <= number <= at_most:
            raise invalid(
                f"Invalid value {_short(value)} for parameter '{name}': expected an integer from {at_least} to"
                f" {at_most}"
            )
        return number

    def items(self, name: str) -> list[Any]:
        """Return a list field; a missing one is empty."""
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise invalid(f"Invalid value {_short(value)} for parameter '{name}': expected a list")
        return value


Endpoint = Callable[[Call], JSON | HttpResponseBase]


def clean(text: str) -> str:
    """Return a text that any database stores."""
    return lab.storable.text(text)


def integer(value: Any) -> int | None:
    """Read an integer from JSON: a whole number or its text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**63 else None
    if isinstance(value, int):
        return value if abs(value) <= _MAX_INTEGER else None
    if isinstance(value, str) and len(value) < 21:
        try:
            return int(value)
        except ValueError:
            return None
    return None


def real(value: Any) -> float | None:
    """Read a float from JSON, where NaN and infinities are texts; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1.8e308 or math.isinf(value) or math.isnan(value) else None
    if isinstance(value, str) and len(value) < 41:
        try:
            return float(value)
        except ValueError:
            return None
    return None


def entries(call: Call, name: str) -> list[Mapping[str, Any]]:
    """Return a list of objects."""
    items = call.items(name)
    for index, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise invalid(f"Invalid value {_short(item)} for parameter '{name}[{index}]': expected an object")
    return items


def endpoint(method: str, function: Endpoint) -> Callable[..., HttpResponseBase]:
    """Wrap a function as a view: authentication, permission, JSON in and out, errors in MLflow's shape."""

    @csrf_exempt
    @login_not_required
    @wraps(function)
    def view(request: HttpRequest, **path: str) -> HttpResponseBase:
        try:
            user = _user(request)
            if request.method != method:
                raise MlflowError("ENDPOINT_NOT_FOUND", f"{request.path} accepts {method}, not {request.method}")
            if not user.has_perm("lab.add_run") and not _only_reads(request):
                raise MlflowError(
                    "PERMISSION_DENIED", f"User {user} may not add runs (permission lab.add_run); ask an administrator"
                )
            answer = function(Call(user, {**_fields(request), **path}, request))
        except MlflowError as error:
            return error_response(error)
        except (Conflict, BadArtifact) as error:
            return error_response(invalid(f"{error}"))
        except RequestDataTooBig as error:
            return error_response(MlflowError("BAD_REQUEST", f"The request body is too large: {error}"))
        return answer if isinstance(answer, HttpResponseBase) else JsonResponse(answer, json_dumps_params={})

    return view


def error_response(error: MlflowError) -> HttpResponse:
    response = JsonResponse({"error_code": error.code, "message": str(error)}, status=_STATUS[error.code])
    if error.code == "UNAUTHENTICATED":
        response["WWW-Authenticate"] = 'Basic realm="parlab"'
    return response


def _only_reads(request: HttpRequest) -> bool:
    return request.method == "GET" or request.path.endswith("/search")


def _user(request: HttpRequest) -> User:
    """Authenticate by token (Bearer, or as password of any user name), user and password, or the browser's session."""
    kind, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer":
        token = lab.token_find(credentials.strip())
        if token is not None and token.user.is_active:
            return token.user
        raise MlflowError(
            "UNAUTHENTICATED", "Invalid or revoked token; set MLFLOW_TRACKING_TOKEN to one from your account page"
        )
    if kind.lower() == "basic":
        name, password = _basic(credentials)
        user = authenticate(request, username=name, password=password)
        if user is None and password.startswith("parlab_") and (token := lab.token_find(password)) is not None:
            user = token.user if token.user.is_active else None
        if isinstance(user, User):
            return user
        raise MlflowError("UNAUTHENTICATED", "Invalid username or password; check MLFLOW_TRACKING_USERNAME")
    if request.user.is_authenticated and request.method == "GET":
        return request.user
    raise MlflowError(
        "UNAUTHENTICATED",
        "Authentication required; set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    )


def _basic(credentials: str) -> tuple[str, str]:
    try:
        name, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise MlflowError("UNAUTHENTICATED", "Invalid Authorization header; expected Basic credentials") from None
    return name, password


def _fields(request: HttpRequest) -> JSON:
    if request.method == "GET" or not (request.content_type or "").startswith("application/json"):
        return {name: values if len(values) > 1 else values[0] for name, values in request.GET.lists()}
    body = request.body
    if not body:
        return {}
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MlflowError("BAD_REQUEST", f"The request body is not JSON: {str(error)[:200]}") from None
    if not isinstance(data, dict):
        raise MlflowError("BAD_REQUEST", f"The request body is a JSON {type(data).__name__}; expected an object")
    return data


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
