"""`POST /api/spools/<run>/<attempt>/` where many pods post at once: checked one by one, and stored together.

The view of the REST framework, which documents it, answers the same for those that come another way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, JsonResponse

from parlab.ingest.batches.posted import PostedBatch, posted_batch_open, posted_batches_apply
from parlab.lab.models.access.viewer import viewing
from runners.wire.trust import Untrusted

NO_KEY = "check the key of the node of this pool; kubectl logs of its controller names it"
OTHER_VERSION = "use the same version of parlab in the image of the pool and on the server"


class WaitingSpool(JsonResponse):
    """The response to a batch, which `spools_store` completes."""

    def __init__(self, request: HttpRequest, posted: PostedBatch) -> None:
        super().__init__({}, headers={"Cache-Control": "no-store"})
        self.request = request
        self.posted = posted


@viewing(None)
def spool_received(request: HttpRequest, run: int, attempt: int, senders: object) -> JsonResponse:  # noqa: ARG001
    """Check a batch; its response waits for `spools_store`. The signature is the permission, whoever else sends."""
    try:
        posted = posted_batch_open(run=run, attempt=attempt, envelope=json.loads(request.body))
    except Untrusted:
        return _refused(401, "signature", "the signature is not accepted", NO_KEY)
    except (ValueError, RecursionError) as error:
        first = str(error).splitlines()[0][:200]
        return _refused(400, "payload", f"invalid batch: {first}", OTHER_VERSION)
    return WaitingSpool(request, posted)


@viewing(None)
def spools_store(waiting: Sequence[WaitingSpool]) -> None:
    """Store batches in one transaction and complete their responses."""
    answers = posted_batches_apply(posted=[each.posted for each in waiting])
    for each, answer in zip(waiting, answers, strict=True):
        each.content = json.dumps(answer).encode()


def _refused(status: int, field: str, message: str, remedy: str) -> JsonResponse:
    error: dict[str, Any] = {"field": field, "value": None, "message": message, "remedy": remedy}
    return JsonResponse({"errors": [error]}, status=status)
