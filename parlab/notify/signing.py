"""The signature of a webhook: HMAC-SHA256 over the time and the body, so that an old request cannot be sent again."""

from __future__ import annotations

import hashlib
import hmac

from parlab.whole_numbers import whole_number

HEADER = "X-Parlab-Signature"
TOLERANCE_S = 300
"""Age up to which receivers should accept a signature."""


def signature(*, secret: str, body: bytes, at: int) -> str:
    """Return the value of the header: `t=<unix seconds>,v1=<hex>`."""
    return f"t={at},v1={_digest(secret, body, at)}"


def is_valid(*, secret: str, body: bytes, header: str, now: float) -> bool:
    """Check a header as receivers do; docs/use/watch.md shows the same steps."""
    fields = dict(part.partition("=")[::2] for part in header.split(","))
    at = whole_number(fields.get("t", ""), 11)
    if at is None or abs(now - at) > TOLERANCE_S:
        return False
    return hmac.compare_digest(fields.get("v1", ""), _digest(secret, body, at))


def _digest(secret: str, body: bytes, at: int) -> str:
    return hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
