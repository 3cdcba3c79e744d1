"""Agreement of server and node on a key with X25519; no key ever passes through Redis.

Each message of an agreement is signed with a one-time code or the previous key (`trust.py`), so nobody between
the two can take the place of one of them.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from runners.wire.trust import Key, Untrusted, derived

_BYTES = 32


class Pair(NamedTuple):
    """Private and public value of a key agreement; the public value is hexadecimal."""

    private: bytes
    public: str


def new_pair() -> Pair:
    return _pair(secrets.token_bytes(_BYTES))


def derived_pair(secret: bytes, key_id: str) -> Pair:
    """Return the server's pair for a key, which it need not store."""
    return _pair(derived(secret, "agreement", key_id))


def _pair(private: bytes) -> Pair:
    return Pair(private, X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw().hex())


def agreed_key(pair: Pair, public: str, node: str, key_id: str) -> Key:
    """Return the key that both sides compute; raises Untrusted for a public value that would make it guessable."""
    try:
        peer = bytes.fromhex(public)
    except ValueError:
        peer = b""
    if len(peer) != _BYTES:
        raise Untrusted(
            f"a public value of {len(public)} digits is not one of X25519, which has {2 * _BYTES}; server and node"
            " must be of the same release, so update the older one",
            node,
        )
    try:
        private = X25519PrivateKey.from_private_bytes(pair.private)
        shared = private.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError as error:
        raise Untrusted("invalid public value of a key agreement", node) from error
    # Both public values are part of the key, so that it belongs to this agreement only.
    return Key(key_id, derived(shared, "agreed", node, key_id, *sorted((pair.public, peer.hex()))))
