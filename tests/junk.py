"""Messages that make no sense, as an enemy who reaches Redis would put them into a queue."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
from typing import Any


def envelope(task: Any = "parlab.fleet.heartbeat", body: Any = None, **changes: Any) -> bytes:
    """Return a message of Celery in Redis with parts replaced; a part that is `...` is left out."""
    text = json.dumps([[{"node": "n1"}], {}, {}] if body is None else body).encode()
    message: dict[str, Any] = {
        "body": base64.b64encode(text).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"task": task, "id": "1", "lang": "py"},
        "properties": {
            "body_encoding": "base64",
            "delivery_tag": "1",
            "delivery_info": {"exchange": "", "routing_key": "control"},
        },
    }
    message |= {name.replace("_", "-"): part for name, part in changes.items()}
    return json.dumps({name: part for name, part in message.items() if part is not ...}).encode()


def bomb() -> bytes:
    """Return a message whose compressed body is compressed."""
    body = base64.b64encode(gzip.compress(bytes(1 << 20) * 16, 9)).decode()
    message = json.loads(envelope())
    message["headers"]["compression"] = "application/x-gzip"
    return json.dumps({**message, "body": body}).encode()


WHOLE = envelope()
BODY = json.loads(WHOLE)["body"].encode()
JUNK: dict[str, bytes] = {
    "no JSON": b"\x00\xff not JSON",
    "empty": b"",
    "a pickle": pickle.dumps({"body": print}),
    "a pickle as body": envelope(content_type="application/x-python-serialize", content_encoding="binary"),
    "half a message": WHOLE[: len(WHOLE) // 2],
    "deep": b"[" * 100_000,
    "a deep body": envelope().replace(BODY, base64.b64encode(b"[" * 100_000)),
    "a number": b"5",
    "a list": b"[]",
    "null": b"null",
    "no properties": envelope(properties=...),
    "no headers": envelope(headers=...),
    "headers of another kind": envelope(headers=[1]),
    "no body": WHOLE.replace(b'"body"', b'"corpse"', 1),
    "not base64": WHOLE.replace(BODY, b"!!!!"),
    "a body of another kind": envelope(body={"task": "x"}),
    "no arguments": envelope(body=[[], {}, {}]),
    "follow-up tasks": envelope(body=[[{}], {}, {"callbacks": [{"task": "x"}]}]),
    "many arguments": envelope(body=[[1, 2, 3], {}, {}]),
    "named arguments": envelope(body=[[{}], {"x": 1}, {}]),
    "an unknown task": envelope("parlab.fleet.explode"),
    "a task of Celery": envelope("celery.group"),
    "a task that is no text": envelope({"x": 1}),
    "a task that is a list": envelope(["x"]),
    "a bad expiry": envelope(headers={"task": "parlab.fleet.heartbeat", "id": "1", "expires": "never"}),
    "a bomb": bomb(),
}
HUGE = b'{"body": "' + b"A" * 100_000_000 + b'"}'
