"""The address of Redis, which a node asks the server for over HTTP, signed with its code or its key.

The address has the password of Redis, so the answer is encrypted (AES-GCM) with a key that only the holder of the code
or of the node's key can derive, and belongs to one request: a server without TLS does not reveal it.
"""

from __future__ import annotations

import secrets
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from runners.wire.trust import Key, Untrusted, derived, seal

PURPOSE = "redis address"
_NONCE_BYTES = 12


def request_for_address(node: str, signer: Key) -> tuple[dict[str, Any], int]:
    """Return the message that asks for the address, and its number."""
    number = secrets.randbits(62)
    return seal(PURPOSE, node, {}, signer, number=number), number


def sealed_address(url: str, node: str, number: int, secret: bytes) -> str:
    """Encrypt the address for the sender of a message; hexadecimal."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return (nonce + _cipher(secret, node).encrypt(nonce, url.encode(), str(number).encode())).hex()


def opened_address(sealed: str, node: str, number: int, secret: bytes) -> str:
    """Decrypt the answer to a message; raises Untrusted if it is not the server's."""
    try:
        content = bytes.fromhex(sealed)
        nonce, encrypted = content[:_NONCE_BYTES], content[_NONCE_BYTES:]
        return _cipher(secret, node).decrypt(nonce, encrypted, str(number).encode()).decode()
    except (InvalidTag, ValueError) as error:
        raise Untrusted("the address of Redis is not sealed with the key of this node; check --server") from error


def _cipher(secret: bytes, node: str) -> AESGCM:
    return AESGCM(derived(secret, PURPOSE, node))
