"""What a node asks for before it can reach Redis. Its signature, with a code or a key of a node, is the credential."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.fleet.enrolment import NotReachable, redis_address
from runners.wire.trust import Untrusted

from .errors import Problem
from .serializers import Errors


class SignedRequest(drf.Serializer[Any]):
    """A message of a node (runners/wire/trust.py)."""

    version = drf.IntegerField()
    node = drf.CharField(max_length=120)
    key = drf.CharField(max_length=120, allow_blank=True, help_text="ID of the code or key that signs.")
    payload = drf.CharField(max_length=4_000, trim_whitespace=False)
    signature = drf.CharField(max_length=64)


class SealedAddress(drf.Serializer[Any]):
    sealed = drf.CharField(help_text="The URL of Redis, which only the signer can decrypt.")


class Refused(Problem):
    status_code: int = status.HTTP_401_UNAUTHORIZED


class Unreachable(Problem):
    status_code: int = status.HTTP_409_CONFLICT


class RedisAddress(APIView):
    """POST returns the address of Redis to a node that has a code or a key."""

    authentication_classes = ()
    permission_classes = [permissions.AllowAny]

    @extend_schema(
        operation_id="enrolment_redis",
        auth=[],
        request=SignedRequest,
        responses={200: SealedAddress, 401: Errors, 409: Errors},
        description="401: the signature is not that of a code or key of the node. 409: nodes cannot reach the Redis.",
    )
    def post(self, request: Request) -> Response:
        body = SignedRequest(data=request.data)
        body.is_valid(raise_exception=True)
        is_here = request.META.get("REMOTE_ADDR") in ("127.0.0.1", "::1")
        try:
            sealed = redis_address(dict(body.validated_data), is_here=is_here)
        except Untrusted as error:
            # The reasons tell a code that has expired from a node that is unknown: only the log has them.
            raise Refused(
                "the code or key is not accepted for this node",
                field="signature",
                value=None,
                remedy="check --node (a code is for one name), --code, its age, and the clocks of node and server",
            ) from error
        except NotReachable as error:
            message, _, remedy = str(error).partition("; ")
            raise Unreachable(message, field="node", value=body.validated_data["node"], remedy=remedy) from error
        return Response(SealedAddress({"sealed": sealed}).data, headers={"Cache-Control": "no-store"})
