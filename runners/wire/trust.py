"""Signed messages between server and nodes: each node has a key of its own, and Redis is only a wire.

An envelope is {"version", "node", "key", "payload", "signature"}: HMAC-SHA256 with the key of the node over the
payload, a JSON text with version, node, purpose, time, number and content. The number of messages of a node rises;
that of a message to a node is random and accepted once. How both sides agree on a key: `agreement.py`.
Standard library only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

WIRE_VERSION = 2
"""Version of the messages. 1: messages of nodes and acknowledgements were not signed."""
LIFETIME_S = 600.0
"""A message older than this is refused, except a batch, which may wait for the server."""
MAX_NAME = 120
"""Characters of the name of a node, and of the id of a key."""
SHARED = ""
"""Id of the key that is derived from the shared key of small teams."""


class Untrusted(ValueError):
    """Raised for a message that is not signed, forged, expired, replayed, or meant for another node or purpose."""

    def __init__(self, reason: str, sender: str = "") -> None:
        super().__init__(reason)
        self.sender = sender


class Key(NamedTuple):
    id: str
    secret: bytes


class Opened(NamedTuple):
    """A message whose signature is genuine."""

    node: str
    key_id: str
    purpose: str
    sent_at: float
    number: int
    content: Any


def derived(secret: bytes, purpose: str, *names: str) -> bytes:
    """Return a key that belongs to a purpose and names, from a secret."""
    return hmac.new(secret, "\0".join(("parlab", purpose, *names)).encode(), hashlib.sha256).digest()


def shared_key(secret: bytes, node: str) -> Key:
    return Key(SHARED, derived(secret, "node", node))


def attempt_key(key: Key, run: int, attempt: int) -> Key:
    """Return the key with which a pod of one attempt signs: it is good for the records of that attempt alone."""
    return Key(key.id, derived(key.secret, "attempt", str(run), str(attempt)))


def seal(
    purpose: str, node: str, content: Any, key: Key, *, number: int | None = None, lifetime_s: float | None = LIFETIME_S
) -> dict[str, Any]:
    """Return the envelope of a message."""
    now = time.time()
    payload = json.dumps(
        {
            "version": WIRE_VERSION,
            "node": node,
            "purpose": purpose,
            "sent_at": now,
            "expires_at": None if lifetime_s is None else now + lifetime_s,
            "number": secrets.randbits(62) if number is None else number,
            "content": content,
        }
    )
    signature = _signature(payload, key.secret)
    return {"version": WIRE_VERSION, "node": node, "key": key.id, "payload": payload, "signature": signature}


def open_envelope(
    envelope: Any, purpose: str, find_key: Callable[[str, str], bytes], *, now: float | None = None
) -> Opened:
    """Return the message in an envelope; raises Untrusted with the reason.

    `find_key(node, key id)` returns the secret of a key, or raises Untrusted; `now` is by default the time of this
    host.
    """
    payload, signature, node, key_id = _parts(envelope, purpose)
    secret = find_key(node, key_id)
    if not hmac.compare_digest(_signature(payload, secret), signature):
        raise Untrusted(
            "signature does not match: the keys of node and server differ, or the message was altered", node
        )
    content = json.loads(payload)
    if content["node"] != node or content["purpose"] != purpose:
        raise Untrusted(f"signed for node {content['node']} and as {content['purpose']}, but sent as {purpose}", node)
    now, expires_at = now if now is not None else time.time(), content["expires_at"]
    if expires_at is not None and expires_at < now:
        raise Untrusted(f"expired {now - expires_at:.0f} s ago; check the clocks of server and node", node)
    if expires_at is not None and content["sent_at"] > now + LIFETIME_S:
        ahead_s = content["sent_at"] - now
        raise Untrusted(f"sent {ahead_s:.0f} s in the future; check the clocks of server and node", node)
    return Opened(node, key_id, purpose, content["sent_at"], content["number"], content["content"])


def _parts(envelope: Any, purpose: str) -> tuple[str, str, str, str]:
    """Return payload, signature, node and key id of an envelope."""
    if not isinstance(envelope, dict):
        raise Untrusted("not a signed message: an envelope has a payload and a signature")
    node = envelope.get("node")
    sender = node[:120] if isinstance(node, str) else ""
    if "signature" not in envelope:
        who = f"node {sender}" if sender else "the sender"
        raise Untrusted(
            f"{who} sends unsigned messages ({purpose}, wire version 1, here {WIRE_VERSION}); update its daemon", sender
        )
    parts = (envelope.get("payload"), envelope["signature"], node, envelope.get("key"))
    if envelope.get("version") != WIRE_VERSION or not all(isinstance(part, str) for part in parts):
        raise Untrusted(
            f"wire version {str(envelope.get('version', 1))[:20]}, here {WIRE_VERSION}; update the daemon of the node,"
            " or the server if it is the older one",
            sender,
        )
    payload, signature, node, key_id = (str(part) for part in parts)
    # Before a database is asked for them: PostgreSQL takes no text with a NUL.
    if not node.isprintable() or len(node) > MAX_NAME or not key_id.isprintable() or len(key_id) > MAX_NAME:
        raise Untrusted("the name of the node or of its key is none that a node has")
    return payload, signature.encode("ascii", "replace").decode(), node, key_id


def _signature(payload: str, key: bytes) -> str:
    return hmac.new(key, payload.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


class Seen:
    """Numbers of messages that were accepted, to refuse a message that is sent twice."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        # A plain dict takes longer and longer to find its first item where items are deleted at its front.
        self._times: OrderedDict[int, float] = OrderedDict()

    def accept(self, number: int) -> bool:
        """Return whether a number is new, and remember it while its message could be valid."""
        now = time.monotonic()
        if number in self._times:
            return False
        while self._times and (
            len(self._times) >= self._limit or now - next(iter(self._times.values())) > 2 * LIFETIME_S
        ):
            self._times.popitem(last=False)
        self._times[number] = now
        return True


def code_key(code_secret: str, node: str, key_id: str) -> bytes:
    """Return the key by which a one-time code signs its enrolment."""
    return derived(code_secret.encode(), "code", node, key_id)
