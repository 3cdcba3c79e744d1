"""Requests of W&B's clients: who sends them, their bodies, and errors that name the remedy."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import orjson
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from parlab.lab.models import ApiToken, AuditEntry
from parlab.lab.models.access.viewer import current_viewer, viewer_become, viewing
from parlab.lab.services import storable
from parlab.lab.services.access.audit import audit_add
from parlab.lab.services.access.request_limits import TooManyRequests
from parlab.lab.services.access.token_requests import (
    TokenRefused,
    reporter_require,
    token_authenticate,
    token_require,
)
from parlab.tracking.artifacts import BadArtifact
from parlab.tracking.runs import Conflict

JSON = dict[str, Any]
MAX_INFLATED = 32 << 20
"""Bytes of a body after decompression; clients divide what is larger than 10 MiB."""
MAX_CONTAINERS, MAX_VALUES = 500_000, 3_000_000
"""Lists and objects, and values, of one JSON text: `[],[],...` takes 20 times its size once it is read."""
_GZIP = 31
"""Window bits of zlib for a gzip header."""
NO_TOKEN = "set WANDB_API_KEY to a token from your account page"


class WandbError(Exception):
    """An answer to a request that cannot be carried out."""

    def __init__(self, message: str, status: int = 400, *, wait_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.wait_s = wait_s


class Missing(WandbError):
    """Something that does not exist, or that the user may not see."""

    def __init__(self, what: str, name: object) -> None:
        super().__init__(f"{what} {str(name)[:200]!r} does not exist", 404)


@dataclass(frozen=True)
class Call:
    """One request: who sends it, and its variables."""

    user: User
    data: Mapping[str, Any]
    http: HttpRequest

    def text(self, *names: str) -> str:
        """Return the first of some fields that is stated, as a text that any database stores; empty for none."""
        for name in names:
            value = self.data.get(name)
            if value is not None and value != "":
                return storable.text(str(value))
        return ""

    def whole(self, name: str, default: int) -> int:
        value = self.data.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def texts(self, name: str) -> list[str] | None:
        """Return a list of texts; None if it is not stated."""
        value = self.data.get(name)
        return [storable.text(str(item)) for item in value] if isinstance(value, list) else None

    def objects(self, name: str) -> list[JSON] | None:
        """Return a list of objects; None if it is not stated. Raises WandbError."""
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise WandbError(f"{name} is {str(value)[:60]}; send a list of objects")
        return value

    def document(self, name: str) -> JSON | None:
        """Return an object that travels as JSON in a text; None if it is not stated. Raises WandbError."""
        value = self.data.get(name)
        if value is None or value == "":
            return None
        document = json_of(value, name) if isinstance(value, str) else value
        if not isinstance(document, dict):
            raise WandbError(f"{name} is a {type(document).__name__}; send an object")
        return document

    def address(self, path: str) -> str:
        """Return the address of a path as the client reaches this server."""
        return self.http.build_absolute_uri(path)

    def record(self, action: AuditEntry.Action, operation: str, what: str) -> None:
        """Write into the audit log what an operation has done: its address is that of all operations."""
        audit_add(
            user=self.user,
            action=action,
            route=f"wandb {operation}",
            method="POST",
            path=what,
            status=200,
            token=str(getattr(getattr(self.http, "auth", None), "name", "")),
            address=str(self.http.META.get("REMOTE_ADDR", "")),
        )


Endpoint = Callable[[Call], JSON | HttpResponseBase]


def json_of(text: str | bytes, name: str) -> Any:
    """Read JSON in which NaN and Infinity may occur, of bounded size in memory. Raises WandbError."""
    if len(text) > MAX_CONTAINERS and _is_vast(text.encode(errors="replace") if isinstance(text, str) else text):
        raise WandbError(f"{name} has more than {MAX_CONTAINERS:,} lists or {MAX_VALUES:,} values; send less", 413)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WandbError(f"{name} is not JSON: {str(error)[:200]}") from None


def _is_vast(text: bytes) -> bool:
    lists, objects, commas = map(text.count, (b"[", b"{", b","))
    return lists + objects > MAX_CONTAINERS or commas > MAX_VALUES


def endpoint(method: str, function: Endpoint, *, scope: str) -> Callable[..., HttpResponseBase]:
    """Wrap a function as a view: authentication, permission, and errors as JSON."""

    @csrf_exempt
    @login_not_required
    @wraps(function)
    def view(request: HttpRequest, **path: str) -> HttpResponseBase:
        with viewing(current_viewer()):
            return answered(request, **path)

    def answered(request: HttpRequest, **path: str) -> HttpResponseBase:
        try:
            if request.method != method:
                raise WandbError(f"{request.path} accepts {method}, not {request.method}", 405)
            answer = function(Call(caller(request, scope), path, request))
        except WandbError as error:
            return failure(error)
        except (Conflict, BadArtifact) as error:
            return failure(WandbError(str(error)))
        except PermissionDenied as error:
            return failure(WandbError(str(error), 403))
        except RequestDataTooBig as error:
            return failure(WandbError(f"The request body is too large: {error}", 413))
        return answer if isinstance(answer, HttpResponseBase) else JsonResponse(answer)

    return view


def failure(error: WandbError) -> JsonResponse:
    """Return the response to a request that failed, in the shape of GraphQL."""
    response = JsonResponse({"errors": [{"message": str(error)}], "error": str(error)}, status=error.status)
    if error.wait_s:
        response["Retry-After"] = str(error.wait_s)
    if error.status == 401:
        response["WWW-Authenticate"] = 'Basic realm="parlab"'
    return response


def caller(request: HttpRequest, scope: str) -> User:
    """Authenticate a request, and check that its token and user may do what needs a scope."""
    token = authenticated(request)
    allow(token, scope)
    return token.user


def authenticated(request: HttpRequest) -> ApiToken:
    """Return the token of a request, which is the password of any user name. Raises WandbError."""
    try:
        token = token_authenticate(secret=_secret(request), address=str(request.META.get("REMOTE_ADDR", "")))
    except TooManyRequests as error:
        raise WandbError(str(error), 429, wait_s=error.wait_s) from None
    except TokenRefused as refused:
        raise WandbError(f"{refused.message}; {NO_TOKEN}", refused.status) from None
    request.user = token.user
    request.auth = token  # type: ignore[attr-defined]  # as REST framework does; the audit log names the token
    viewer_become(token.user, token.project_id)
    return token


def allow(token: ApiToken, scope: str) -> None:
    """Raise WandbError unless a token and its user may do what needs a scope."""
    try:
        token_require(token, scope)
        if scope != "read":
            reporter_require(token.user)
    except TokenRefused as refused:
        raise WandbError(str(refused), refused.status) from None


def _secret(request: HttpRequest) -> str:
    kind, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return credentials.strip()
    if kind.lower() != "basic":
        raise WandbError(f"Authentication required; {NO_TOKEN}", 401)
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        raise WandbError("Invalid Authorization header; expected Basic credentials", 401) from None


def body_of(request: HttpRequest) -> JSON:
    """Read the JSON object of a request, which may be gzipped. Raises WandbError."""
    body = request.body
    if request.headers.get("Content-Encoding", "").lower() == "gzip":
        body = _inflated(body)
    data = json_of(body or b"{}", "The request body")
    if not isinstance(data, dict):
        raise WandbError(f"The request body is a JSON {type(data).__name__}; send an object")
    return data


def _inflated(body: bytes) -> bytes:
    inflate = zlib.decompressobj(_GZIP)
    try:
        content = inflate.decompress(body, MAX_INFLATED)
    except zlib.error:
        raise WandbError("The request body is not gzip although Content-Encoding says so") from None
    if inflate.unconsumed_tail:
        raise WandbError(f"The request body is larger than {MAX_INFLATED >> 20} MiB when decompressed; send less", 413)
    return content
