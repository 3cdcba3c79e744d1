"""Wait for the end of a run: a request that stays open until its state changes."""

from __future__ import annotations

import time
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.api.errors import Problem
from parlab.api.serializers import Errors
from runners.wire.protocol import RunState

from .experiments import one_of
from .numbers import find_run

MAX_WAIT_S = 30.0
_EVERY_S = 0.5


class WaitAnswer(drf.Serializer[Any]):
    """The state of a run when the request ended."""

    number = drf.IntegerField()
    state = drf.CharField()
    reason = drf.CharField(allow_blank=True)
    attempt_number = drf.IntegerField()
    is_final = drf.BooleanField(help_text="Whether the attempt has ended.")


class Wait(APIView):
    """Answer when the run has ended or left the state `seen`, at the latest after `timeout` seconds."""

    @extend_schema(
        operation_id="runs_wait",
        parameters=[
            OpenApiParameter("timeout", float, description=f"Seconds, at most {MAX_WAIT_S:.0f}; default 25."),
            OpenApiParameter("seen", str, description="Also answer when the state is another one than this."),
        ],
        responses={200: WaitAnswer, 400: Errors, 404: Errors},
    )
    def get(self, request: Request, slug: str, number: int) -> Response:
        deadline = time.monotonic() + _timeout_s(request.GET.get("timeout", "25"))
        seen = request.GET.get("seen", "")
        if seen:
            one_of("seen", seen, list(RunState))
        while True:
            run = find_run(slug, number)
            is_final = RunState(run.state).is_final
            rest_s = deadline - time.monotonic()
            if is_final or (seen and run.state != seen) or rest_s <= 0:
                answer = {"number": run.number, "state": run.state, "reason": run.reason}
                return Response({**answer, "attempt_number": run.attempt_number, "is_final": is_final})
            time.sleep(min(_EVERY_S, rest_s))


def _timeout_s(text: str) -> float:
    try:
        seconds = float(text[:20])
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_S:
        message = f"timeout {text[:40]!r} is not a number of seconds from 0 to {MAX_WAIT_S:.0f}"
        raise Problem(message, field="timeout", value=text, remedy="use 25 and ask again")
    return seconds
