"""What a signature costs: seal and open of a heartbeat and of batches, against the JSON of the same message."""

import base64
import json
import os
import time
from collections.abc import Callable
from typing import Any

from runners.wire.message_filter import sound
from runners.wire.protocol import CONTROL_QUEUE
from runners.wire.trust import open_envelope, seal, shared_key
from tests.bench.result import Result, Scale

KEY = shared_key(b"a shared key", "n1")
BATCH_BYTES = 10_000


def signature_us(scale: Scale) -> Result:
    """Measure seal and open of a typical batch, beside writing and reading it as JSON without a signature."""
    content = {"output": base64.b64encode(os.urandom(BATCH_BYTES)).decode(), "run": 1, "node": "n1"}
    rounds = scale.repeats(2_000)

    def signed() -> None:
        envelope = json.loads(json.dumps(seal("batch", "n1", content, KEY)))
        open_envelope(envelope, "batch", lambda *_: KEY.secret)

    def plain() -> None:
        json.loads(json.dumps(content))

    signed_s, plain_s = _seconds(signed, rounds), _seconds(plain, rounds)
    guard_s = _seconds(lambda: sound(_message(content), CONTROL_QUEUE, lambda *_: ""), rounds)
    against = f"{1e6 * plain_s:.0f} us without a signature; check by the worker {1e6 * guard_s:.0f} us"
    return Result(1e6 * signed_s, "us", against, plain_s / signed_s, rounds)


def _seconds(work: Callable[[], object], rounds: int) -> float:
    began = time.perf_counter()
    for _ in range(rounds):
        work()
    return (time.perf_counter() - began) / rounds


def _message(content: dict[str, Any]) -> bytes:
    body = base64.b64encode(json.dumps([[content], {}, {}]).encode()).decode()
    headers, properties = {"task": "x", "id": "1"}, {"body_encoding": "base64"}
    return json.dumps(
        {"body": body, "content-type": "application/json", "headers": headers, "properties": properties}
    ).encode()
