"""Records of pods that reach the server over HTTP alone. The credential is a signature with the key of an attempt."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import permissions, status
from rest_framework import serializers as drf
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from parlab.ingest.batches.posted import posted_batch_open, posted_batches_apply
from parlab.lab.models.access.viewer import viewing
from parlab.tracking.spool_views import NO_KEY, OTHER_VERSION
from runners.wire.trust import Untrusted

from .errors import Problem
from .serializers import Errors


class Envelope(drf.Serializer[Any]):
    """A signed message between a pod and the server (runners/wire/trust.py)."""

    version = drf.IntegerField()
    node = drf.CharField(max_length=120)
    key = drf.CharField(max_length=120, allow_blank=True, help_text="ID of the key of the node.")
    payload = drf.CharField(trim_whitespace=False)
    signature = drf.CharField(max_length=64)


class Refused(Problem):
    status_code: int = status.HTTP_401_UNAUTHORIZED


class Spools(APIView):
    """POST stores the next records of a pod, and answers how much of its spool is stored."""

    authentication_classes = ()
    permission_classes = [permissions.AllowAny]

    @extend_schema(
        operation_id="spool_post",
        auth=[],
        request=Envelope,
        responses={200: Envelope, 400: Errors, 401: Errors},
        description="Pods of a pool without a shared volume call it. 401: the signature is not that of the attempt.",
    )
    def post(self, request: Request, run_id: int, attempt: int) -> Response:
        body = Envelope(data=request.data)
        body.is_valid(raise_exception=True)
        try:
            with viewing(None):  # the signature is the permission
                posted = posted_batch_open(run=run_id, attempt=attempt, envelope=dict(body.validated_data))
                (answer,) = posted_batches_apply(posted=[posted])
        except Untrusted as error:
            raise Refused("the signature is not accepted", field="signature", value=None, remedy=NO_KEY) from error
        except ValueError as error:
            first = str(error).splitlines()[0][:200]
            raise Problem(f"invalid batch: {first}", field="payload", value=None, remedy=OTHER_VERSION) from error
        return Response(answer, headers={"Cache-Control": "no-store"})
