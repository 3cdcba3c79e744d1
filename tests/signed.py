"""Signed messages of nodes in tests: with the key that a node derives from the shared one."""

from __future__ import annotations

import json
import time
from typing import Any

from runners.wire.protocol import Batch, Heartbeat
from runners.wire.trust import Key, seal, shared_key


def content_of(envelope: dict[str, Any]) -> Any:
    """Return the content of an envelope, whoever signed it."""
    return json.loads(envelope["payload"])["content"]


def sealed_batch(batch: Batch, key: bytes | Key) -> dict[str, Any]:
    """Return a batch as its node sends it; bytes are the shared key."""
    return seal("batch", batch.node, batch.to_wire(), _own(key, batch.node), lifetime_s=None)


def sealed_heartbeat(heartbeat: Heartbeat, key: bytes | Key, *, number: int | None = None) -> dict[str, Any]:
    """Return a heartbeat as its node sends it, later than all before."""
    rising = time.time_ns() // 1_000 if number is None else number
    content = heartbeat.model_dump(mode="json")
    return seal("heartbeat", heartbeat.node, content, _own(key, heartbeat.node), number=rising)


def _own(key: bytes | Key, node: str) -> Key:
    return shared_key(key, node) if isinstance(key, bytes) else key
