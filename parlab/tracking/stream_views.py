"""`PUT`, `GET` and `POST /api/runs/<run>/streams/<stream>/`: how parlab's client reports. See docs/use/logging.md.

Not views of the REST framework: a batch is binary, and these requests come many times a second.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import User
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from pydantic import ValidationError

from parlab.client.journal import HEADER, Kind, encode
from parlab.lab.models import AuditEntry, Stream, TrackedRun
from parlab.lab.models.access.viewer import Viewer, viewer_of, viewing
from parlab.lab.services.access.request_limits import TooManyRequests, request_count
from parlab.lab.services.access.rights import may_change, refusal
from parlab.lab.services.access.token_requests import TokenRefused, reporter_require, token_admit
from parlab.whole_numbers import whole_number
from runners.wire.protocol import MAX_BATCH_BYTES

from . import artifacts
from .launches import Undecided
from .streams import UNKNOWN, Occupied, Opening, StreamBatch, stream_open, streams_apply

MAX_BODY_BYTES = 4 * MAX_BATCH_BYTES
MAX_OPENING_BYTES = 8 << 20
_LAST_POSITION = 2**63 - 1
_NO_TOKEN = "create a token on your account page and pass it to `parlab login`, or set PARLAB_TOKEN"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_STREAM_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


class Problem(Exception):
    """A request that cannot be served; the response names field, value and remedy."""

    def __init__(self, status: int, message: str, *, field: str | None, value: Any, remedy: str) -> None:
        super().__init__(message)
        self.status = status
        value = None if value is None else str(value)[:200]
        self.error = {"field": field, "value": value, "message": message, "remedy": remedy}


class Waiting(JsonResponse):
    """The response to a batch, which `batches_store` completes."""

    def __init__(self, request: HttpRequest, batch: StreamBatch) -> None:
        super().__init__({})
        self.request = request
        self.batch = batch

    def complete(self, committed: int) -> None:
        """State the position up to which the stream is stored."""
        answer: dict[str, Any] = {"committed": committed}
        if committed == UNKNOWN:
            problem = _unknown(self.batch.run_id, self.batch.key)
            self.status_code, answer = problem.status, {"errors": [problem.error]}
        self.content = json.dumps(answer).encode()


@csrf_exempt
@login_not_required
def stream(request: HttpRequest, run: str, stream: str) -> JsonResponse:
    """Open a stream (PUT), store a batch (POST), or return the committed position (GET)."""
    response = received(request, run, stream, {})
    if isinstance(response, Waiting):
        batches_store([response])
    return response


@csrf_exempt
@login_not_required
def file(request: HttpRequest, run: str, path: str) -> JsonResponse:
    """Store a file of a run as its artifact (PUT)."""
    try:
        sender = _sender(request.headers.get("Authorization", ""), str(request.META.get("REMOTE_ADDR", "")))
        if request.method != "PUT":
            raise _not_allowed(request, "PUT")
        with viewing(sender):
            tracked = _own_run(run, sender.user)
        request.user = sender.user
        if tracked.artifacts.filter(path=path).exists():
            request.audited = AuditEntry.Action.CHANGE  # type: ignore[attr-defined]  # for the audit log
        blocks = iter(lambda: request.read(artifacts.BLOCK_BYTES), b"")
        stored = artifacts.artifact_store(tracked=tracked, path=path, blocks=blocks)
    except artifacts.BadArtifact as error:
        message, _, remedy = str(error).partition("; ")
        return _refused(Problem(400, message, field="path", value=path, remedy=remedy))
    except (Problem, TooManyRequests) as problem:
        return _refused(problem)
    return JsonResponse({"path": stored.path, "size": stored.size, "sha256": stored.sha256})


def _own_run(run: str, user: User) -> TrackedRun:
    """Return a run that a user may change; raises Problem."""
    tracked = TrackedRun.objects.filter(uuid=run, deleted_at=None).first()
    if tracked is None:
        raise Problem(404, f"run {run} is not open here", field="run", value=run, remedy="open a stream with PUT")
    if not may_change(user, tracked):
        raise Problem(403, f"run {run} is not yours", field="run", value=run, remedy=refusal(user, tracked))
    return tracked


def received(request: HttpRequest, run: str, key: str, senders: dict[str, Viewer]) -> JsonResponse:
    """Answer a request; a batch is only checked, and its response waits for `batches_store`.

    `senders` remembers those of requests that arrived together, by their tokens.
    """
    try:
        header = request.headers.get("Authorization", "")
        address = str(request.META.get("REMOTE_ADDR", ""))
        sender = senders.get(header)
        if sender is None:
            sender = senders[header] = _sender(header, address)
        else:
            request_count(sender.user.pk)
        _matched("run", run, _RUN_ID, "1 to 64 letters, digits, '.', '_', ':' and '-'")
        _matched("stream", key, _STREAM_ID, "1 to 64 letters, digits and '-'")
        with viewing(sender):
            return _answer(request, sender, run, key)
    except (Problem, TooManyRequests) as problem:
        return _refused(problem)


def _refused(problem: Problem | TooManyRequests) -> JsonResponse:
    if isinstance(problem, Problem):
        return JsonResponse({"errors": [problem.error]}, status=problem.status)
    above = Problem(429, str(problem), field=None, value=None, remedy="send larger batches")
    return JsonResponse({"errors": [above.error]}, status=429, headers={"Retry-After": str(problem.wait_s)})


@viewing(None)
def batches_store(waiting: Sequence[Waiting]) -> None:
    """Store batches in one transaction and complete their responses."""
    positions = streams_apply(batches=[response.batch for response in waiting])
    for response, position in zip(waiting, positions, strict=True):
        response.complete(position)


def _answer(request: HttpRequest, sender: Viewer, run: str, key: str) -> JsonResponse:
    if request.method == "PUT":
        return _open(request, sender.user, run, key)
    if request.method == "POST":
        return Waiting(request, _batch(request, sender, run, key))
    if request.method == "GET":
        row = Stream.objects.filter(tracked__in=TrackedRun.objects.filter(uuid=run), key=key).first()
        if row is None:
            raise _unknown(run, key)
        return JsonResponse({"committed": row.committed, "state": row.state})
    raise _not_allowed(request, "PUT, POST or GET")


def _not_allowed(request: HttpRequest, methods: str) -> Problem:
    message = f"method {request.method} is not allowed"
    return Problem(405, message, field=None, value=None, remedy=f"use {methods}")


def _sender(authorization: str, address: str) -> Viewer:
    kind, _, secret = authorization.partition(" ")
    if kind.lower() not in ("token", "bearer"):
        raise Problem(401, "authentication required", field=None, value=None, remedy=_NO_TOKEN)
    try:
        token = token_admit(secret=secret.strip(), scope="report", address=address)
        sender = viewer_of(token.user, token.project_id)
        with viewing(sender):
            reporter_require(token.user)
    except TokenRefused as refused:
        remedy = refused.remedy or _NO_TOKEN
        raise Problem(refused.status, refused.message, field=None, value=None, remedy=remedy) from refused
    return sender


def _matched(field: str, value: str, pattern: re.Pattern[str], rule: str) -> None:
    if not pattern.fullmatch(value):
        raise Problem(400, f"{field} ID {value[:80]!r} is invalid", field=field, value=value, remedy=f"use {rule}")


def _open(request: HttpRequest, user: User, run: str, key: str) -> JsonResponse:
    body = _body(request, MAX_OPENING_BYTES)
    try:
        opening = Opening.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or None
        value = first["input"] if field else None
        remedy = "update the client, or send the fields that docs/use/logging.md describes"
        raise Problem(400, f"{field or 'body'}: {first['msg']}", field=field, value=value, remedy=remedy) from error
    try:
        row = stream_open(run_id=run, key=key, opening=opening, user=user)
    except Occupied as error:
        message, _, remedy = str(error).partition("; ")
        raise Problem(409, message, field="rank", value=opening.rank, remedy=remedy) from error
    except Undecided as error:
        message, _, remedy = str(error).partition("; ")
        raise Problem(409, message, field="launch", value=opening.rank, remedy=remedy) from error
    except ValueError as error:
        message, _, remedy = str(error).partition("; ")
        remedy = remedy or "report under another ID"
        raise Problem(400, message, field="experiment", value=opening.experiment, remedy=remedy) from error
    owner = row.tracked.run
    place = {"id": row.tracked.uuid, "experiment": owner.experiment.slug, "number": owner.number}
    url = request.build_absolute_uri(owner.get_absolute_url())
    return JsonResponse({"run": {**place, "url": url}, "stream": key, "committed": row.committed})


def _batch(request: HttpRequest, sender: Viewer, run: str, key: str) -> StreamBatch:
    position, following = _position(request, "position"), _position(request, "next")
    if following < position:
        message = f"next {following} is before position {position}"
        raise Problem(400, message, field="next", value=following, remedy="send the position after the batch")
    return StreamBatch(run, key, position, following, *_records(_body(request, MAX_BODY_BYTES)), sender)


def _unknown(run: str, key: str) -> Problem:
    message = f"stream {key} of run {run} is not open here"
    return Problem(404, message, field="stream", value=key, remedy="open it with PUT")


def _position(request: HttpRequest, name: str) -> int:
    text = request.GET.get(name, "")
    number = whole_number(text, 19)
    if number is None or number > _LAST_POSITION:
        message = f"{name} {text[:40]!r} is not a position"
        raise Problem(400, message, field=name, value=text, remedy="send ?position=<bytes>&next=<bytes>")
    return number


def _body(request: HttpRequest, limit: int) -> bytes:
    """Return the body, unpacked; raises Problem where it or its content is larger than the limit."""
    body = request.read(limit + 1)  # Django's own limit for bodies is meant for forms
    if len(body) > limit:
        raise _too_large(limit)
    encoding = request.headers.get("Content-Encoding", "")
    if not encoding:
        return body
    if encoding != "deflate":
        message = f"Content-Encoding {encoding[:40]!r} is not supported"
        raise Problem(415, message, field="Content-Encoding", value=encoding, remedy="use deflate or none")
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(body, limit)
    except zlib.error as error:
        raise Problem(
            400, f"the body cannot be unpacked: {error}", field=None, value=None, remedy="send zlib"
        ) from error
    if unpacker.unconsumed_tail:
        raise _too_large(limit)
    if not unpacker.eof:
        raise Problem(400, "the body is cut off", field=None, value=None, remedy="send it again")
    return data


def _too_large(limit: int) -> Problem:
    message = f"the body is larger than {limit >> 20} MiB; nothing was stored"
    return Problem(413, message, field=None, value=None, remedy="send smaller batches")


def _records(body: bytes) -> tuple[bytes, list[bytes]]:
    """Return the output and the reports of a batch; raises Problem for damaged records."""
    output, reports, at = bytearray(), list[bytes](), 0
    while at < len(body):
        payload_at = at + HEADER.size
        try:
            _, kind, length, _ = HEADER.unpack(body[at:payload_at])
            payload = body[payload_at : payload_at + length]
            is_valid = encode(Kind(kind), payload) == body[at : payload_at + length]
        except (ValueError, struct.error) as error:
            raise _damaged(at) from error
        if not is_valid or kind not in (Kind.OUTPUT, Kind.REPORT):
            raise _damaged(at)
        if kind == Kind.REPORT:
            reports.append(payload)
        else:
            output += payload
        at = payload_at + length
    return bytes(output), reports


def _damaged(at: int) -> Problem:
    message = f"the record at byte {at} of the batch is damaged"
    return Problem(400, message, field=None, value=None, remedy="send the batch again")


urlpatterns = [
    path("api/runs/<str:run>/streams/<str:stream>/", stream, name="stream"),
    path("api/artifacts/<str:run>/<path:path>", file, name="stream-file"),
]
