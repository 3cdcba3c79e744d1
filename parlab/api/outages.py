"""What a request gets when the server fails: 503 with a reason where the database, Redis or a disk is away, else 500.

Each address answers in its own form: the API's, MLflow's, or a small page that needs none of the three.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import kombu.exceptions
import redis
from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string

RETRY_AFTER_S = 5
_MLFLOW = ("/api/2.0/mlflow", "/ajax-api/", "/api/3.0/mlflow")
_WANDB = ("/graphql", "/files/", "/wandb/")
_DISK = {errno.ENOSPC, errno.EROFS, errno.EIO, errno.ESTALE, errno.EDQUOT, errno.ENOTCONN, errno.EMFILE}
_UNEXPECTED = "The server met an error that nobody expected, and logged it; nothing was saved."


def outage_of(error: BaseException | None) -> str:
    """Return what is away, as a sentence; empty for any other error."""
    while error is not None:
        if isinstance(error, OperationalError | InterfaceError):
            return "The database does not answer."
        if isinstance(error, redis.RedisError | kombu.exceptions.OperationalError):
            return "Redis does not answer."
        if isinstance(error, OSError) and (error.errno in _DISK or _is_ours(error.filename)):
            return f"The disk of the server does not answer ({error.strerror})."
        error = error.__cause__ or error.__context__
    return ""


def _is_ours(name: object) -> bool:
    if not isinstance(name, str | Path):
        return False
    return any(Path(name).is_relative_to(directory) for directory in (settings.ARTIFACTS_DIR, settings.DATA_DIR))


def failed_request(request: HttpRequest) -> HttpResponse:
    """Answer a request that has failed; Django calls this while it handles the exception."""
    outage = outage_of(sys.exc_info()[1])
    response = _answer(request, outage)
    if outage:
        response["Retry-After"] = str(RETRY_AFTER_S)
    return response


def _answer(request: HttpRequest, outage: str) -> HttpResponse:
    status, text = (503, f"{outage} Nothing was saved; try again.") if outage else (500, _UNEXPECTED)
    if request.path.startswith(_MLFLOW):
        code = "TEMPORARILY_UNAVAILABLE" if outage else "INTERNAL_ERROR"
        return JsonResponse({"error_code": code, "message": text}, status=status)
    if request.path.startswith(_WANDB):
        return JsonResponse({"errors": [{"message": text}], "error": text}, status=status)
    if request.path.startswith("/api/"):
        remedy = "try again; tell an administrator if it stays"
        error = {"field": None, "value": None, "message": text, "remedy": remedy}
        return JsonResponse({"errors": [error]}, status=status)
    try:
        page = render_to_string("500.html", {"outage": outage})
    except (ValueError, OSError):
        # Its static files have not been collected, which may be the error itself.
        return HttpResponse(f"{text}\n", status=status, content_type="text/plain; charset=utf-8")
    return HttpResponse(page, status=status)
