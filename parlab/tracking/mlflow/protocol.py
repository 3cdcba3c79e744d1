"""Requests and errors in MLflow's shape."""

from __future__ import annotations

import base64
import binascii
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import parse_qs

import orjson
from django.contrib.auth import authenticate
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from parlab.lab import services as lab
from parlab.lab.models.access.viewer import current_viewer, viewer_become, viewing
from parlab.lab.services.access.logins import login_failed, login_succeeded, login_wait_s
from parlab.lab.services.access.passwords import has_second_factor
from parlab.lab.services.access.request_limits import TooManyRequests, request_count
from parlab.lab.services.access.token_requests import (
    FORBIDDEN,
    TokenRefused,
    reporter_require,
    token_admit,
)
from parlab.lab.services.access.tokens import is_secret
from parlab.tracking.artifacts import BadArtifact
from parlab.tracking.runs import Conflict

logger = logging.getLogger(__name__)

JSON = dict[str, Any]
_STATUS = {
    "INVALID_PARAMETER_VALUE": 400,
    "RESOURCE_ALREADY_EXISTS": 400,
    "INVALID_STATE": 400,
    "BAD_REQUEST": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "RESOURCE_DOES_NOT_EXIST": 404,
    "ENDPOINT_NOT_FOUND": 404,
    # Not 501: clients and monitoring take every 5xx for a fault of the server, and some send it again.
    "REQUEST_LIMIT_EXCEEDED": 429,
    "NOT_IMPLEMENTED": 404,
}
_MAX_INTEGER = 2**63 - 1
MAX_FIELDS = 20_000
NO_TOKEN = "set MLFLOW_TRACKING_TOKEN to a token from your account page"


class MlflowError(Exception):
    """An answer to a request that cannot be carried out: an error code of MLflow and a message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> MlflowError:
    """Return the error for a parameter with an invalid value."""
    return MlflowError("INVALID_PARAMETER_VALUE", message)


def invalid_value(name: str, value: Any, reason: str) -> MlflowError:
    """Return the error for a parameter with an invalid value, in MLflow's words."""
    return invalid(f"Invalid value {_short(value)} for parameter '{name}' supplied: {reason}")


def required(name: str) -> MlflowError:
    """Return the error for a parameter that is missing."""
    return invalid(f"Missing value for required parameter '{name}'.")


def missing(what: str, name: str) -> MlflowError:
    """Return the error for something that does not exist."""
    return MlflowError("RESOURCE_DOES_NOT_EXIST", f"No {what} {name[:200]!r} exists")


@dataclass(frozen=True)
class Call:
    """One request: who sends it and with which fields, from the body or the query."""

    user: User
    data: Mapping[str, Any]
    http: HttpRequest

    @property
    def is_change(self) -> bool:
        """Whether the request may change what it names."""
        return not _only_reads(self.http)

    def text(self, name: str, default: str | None = None, *, at_most: int = 20_000) -> str:
        """Return a text field; without a default it is required and not empty."""
        value = self.data.get(name)
        if value is None or value == "":
            if default is None:
                raise required(name)
            return default
        if not isinstance(value, str):
            raise invalid_value(name, value, "expected a string")
        if len(value) > at_most:
            raise invalid(f"'{name}' exceeds the maximum length of {at_most} characters, got {len(value)} characters")
        return clean(value)

    def whole(self, name: str, default: int | None = None, *, at_least: int = 0, at_most: int = _MAX_INTEGER) -> int:
        """Return an integer field, which JSON may write as a number or a text."""
        value = self.data.get(name)
        if value is None or value == "":
            if default is None:
                raise required(name)
            return default
        number = integer(value)
        if number is None or not at_least <= number <= at_most:
            raise invalid_value(name, value, f"expected an integer from {at_least} to {at_most}")
        return number

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return a field of an enumeration, which clients send as its name or number from 1; the first by default."""
        value = self.data.get(name)
        number = integer(value)
        if number is not None and 1 <= number <= len(choices):
            return choices[number - 1]
        if value is None or value == "":
            return choices[0]
        if value not in choices:
            raise invalid_value(name, value, f"use one of {', '.join(choices)}")
        return str(value)

    def items(self, name: str) -> list[Any]:
        """Return a list field; a missing one is empty."""
        value = self.data.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise invalid_value(name, value, "expected a list")
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
    items = call.items(name)
    for index, item in enumerate(items):
        if not isinstance(item, dict):  # as JSON has it; a check for Mapping takes five times as long
            raise invalid_value(f"{name}[{index}]", item, "expected an object")
    return items


def endpoint(method: str, function: Endpoint) -> Callable[..., HttpResponseBase]:
    """Wrap a function as a view: authentication, permission, JSON in and out, errors in MLflow's shape."""

    @csrf_exempt
    @login_not_required
    @wraps(function)
    def view(request: HttpRequest, **path: str) -> HttpResponseBase:
        with viewing(current_viewer()):
            return answered(request, **path)

    def answered(request: HttpRequest, **path: str) -> HttpResponseBase:
        try:
            user = _user(request, _scope_of(request))
            request.user = user
            viewer_become(user, getattr(getattr(request, "auth", None), "project_id", None))
            if request.method != method:
                raise MlflowError("ENDPOINT_NOT_FOUND", f"{request.path} accepts {method}, not {request.method}")
            if not _only_reads(request):
                reporter_require(user)
            answer = function(Call(user, {**_fields(request), **path}, request))
        except MlflowError as error:
            return error_response(error)
        except TokenRefused as refused:
            return error_response(_refusal(refused))
        except TooManyRequests as error:
            answer = error_response(MlflowError("REQUEST_LIMIT_EXCEEDED", str(error)))
            answer["Retry-After"] = str(error.wait_s)
            return answer
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


def _scope_of(request: HttpRequest) -> str:
    if _only_reads(request):
        return "read"
    takes_away = request.method == "DELETE" or request.path.endswith(("/delete", "/restore"))
    return "write" if takes_away else "report"


def _refusal(refused: TokenRefused) -> MlflowError:
    code = "PERMISSION_DENIED" if refused.status == FORBIDDEN else "UNAUTHENTICATED"
    return MlflowError(code, f"{refused.message}; {refused.remedy or NO_TOKEN}")


def _user(request: HttpRequest, scope: str) -> User:
    """Authenticate by token (Bearer, or as password of any user name), user and password, or the browser's session.

    A token must have the scope.
    """
    kind, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return _of_token(request, credentials.strip(), scope)
    if kind.lower() == "basic":
        name, password = _basic(credentials)
        if is_secret(password):
            return _of_token(request, password, scope)
        user = _throttled(request, name, password)
        if isinstance(user, User):
            return user
        raise MlflowError("UNAUTHENTICATED", "Invalid username or password; check MLFLOW_TRACKING_USERNAME")
    if request.user.is_authenticated and request.method == "GET":
        return request.user
    raise MlflowError(
        "UNAUTHENTICATED",
        "Authentication required; set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    )


def _throttled(request: HttpRequest, name: str, password: str) -> object:
    """Authenticate by password, as slowly as the login page after failures; None if it is wrong."""
    place = {"username": name, "address": str(request.META.get("REMOTE_ADDR", ""))}
    if wait_s := login_wait_s(**place):
        text = f"Too many failed logins with this name from this address; try again in {wait_s} s"
        raise MlflowError("UNAUTHENTICATED", f"{text}, or use a token from your account page")
    user = authenticate(request, username=name, password=password)
    if user is not None and has_second_factor(user):
        raise MlflowError("UNAUTHENTICATED", f"A password alone does not let {name} in; {NO_TOKEN}")
    if user is None:
        login_failed(**place)
    else:
        login_succeeded(**place)
        request_count(user.pk)
    return user


def _of_token(request: HttpRequest, secret: str, scope: str) -> User:
    """Return the user of a token; the audit log names the token."""
    token = token_admit(secret=secret, scope=scope, address=str(request.META.get("REMOTE_ADDR", "")))
    request.auth = token  # type: ignore[attr-defined]  # as REST framework does
    return token.user


def _basic(credentials: str) -> tuple[str, str]:
    try:
        name, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise MlflowError("UNAUTHENTICATED", "Invalid Authorization header; expected Basic credentials") from None
    return name, password


def _query(text: str) -> JSON:
    """Read a query; a name that is repeated becomes a list. Django's own limit would refuse long lists of runs."""
    try:
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise MlflowError("BAD_REQUEST", f"The query has more than {MAX_FIELDS} fields") from None
    return {clean(name): values if len(values) > 1 else values[0] for name, values in fields.items()}


def _fields(request: HttpRequest) -> JSON:
    is_json = (request.content_type or "").startswith("application/json")
    if request.method == "POST" and not is_json and not request.path.endswith("/upload-artifact"):
        fault = "must be one of ['application/json']" if request.content_type else "header is missing"
        raise invalid(f"Bad Request. Content-Type {fault}.")
    if request.method == "GET" or not is_json:
        return _query(request.META.get("QUERY_STRING", ""))
    body = request.body
    if not body:
        return {}
    try:
        try:
            data = orjson.loads(body)
        except orjson.JSONDecodeError:
            data = json.loads(body)  # NaN and Infinity, which some clients write, and the message for other errors
    except (ValueError, RecursionError) as error:
        raise MlflowError("BAD_REQUEST", f"The request body is not JSON: {str(error)[:200]}") from None
    if not isinstance(data, dict):
        raise MlflowError("BAD_REQUEST", f"The request body is a JSON {type(data).__name__}; expected an object")
    return data


def _short(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return text if len(text) <= 200 else f"{text[:199]}…"
