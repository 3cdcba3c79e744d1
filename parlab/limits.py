"""A limit on the size of request bodies, applied before anything is stored.

Under ASGI, Django writes the whole body of a request to disk before it checks the path or the user. Without this limit,
anonymous requests to the login page could fill the disk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

FORM_BYTES = 16 * 2**20
"""Limit of forms and JSON, which are far smaller."""

_UPLOAD = (
    "This upload is larger than {} MiB; nothing was stored. Upload less at a time, or ask an administrator to raise"
    " PARLAB_UPLOAD_LIMIT_MIB or to use manage.py ingest."
)
_FORM = (
    "This request is larger than {} MiB; nothing was stored. A picture may have 12 MiB; send logs and documents to"
    " /import/ or /api/imports/."
)


class BodyLimit:
    """ASGI middleware that refuses larger bodies with status 413.

    `uploads` lists the paths that accept files, `upload_prefixes` the beginnings of such paths.
    """

    def __init__(
        self,
        application: Application,
        *,
        upload_bytes: int,
        uploads: tuple[str, ...],
        upload_prefixes: tuple[str, ...] = (),
    ) -> None:
        self.application = application
        self.upload_bytes = upload_bytes
        self.uploads = uploads
        self.upload_prefixes = upload_prefixes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        is_upload = scope["path"] in self.uploads or scope["path"].startswith(self.upload_prefixes)
        # The multipart form around the files has some bytes, too.
        limit = self.upload_bytes + 2**20 if is_upload else FORM_BYTES
        text = _UPLOAD.format(self.upload_bytes >> 20) if is_upload else _FORM.format(limit >> 20)
        if _content_length(scope) > limit:
            await _refuse(send, text)
            return
        received, is_refused, is_answered = 0, False, False

        async def counted() -> Message:
            nonlocal received, is_refused
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                is_refused = True
                return {"type": "http.disconnect"}
            return message

        async def watched(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        await self.application(scope, counted, watched)
        if is_refused and not is_answered:
            await _refuse(send, text)


def _content_length(scope: Scope) -> int:
    value = dict(scope["headers"]).get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0


async def _refuse(send: Send, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
