"""Keys of nodes: one-time codes, enrolment, rotation, revocation, and which key signs a message.

A key is stored encrypted with a pad derived from the server's node key; a copy of the database reveals no key.
"""

import base64
import logging
import secrets
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from hashlib import sha256

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from parlab.lab.models import NodeKey
from runners.wire.agreement import agreed_key, derived_pair
from runners.wire.protocol import Enrol, Rotate
from runners.wire.trust import MAX_NAME, SHARED, Key, Untrusted, attempt_key, code_key, derived, shared_key

CODE_LIFETIME = timedelta(hours=24)

logger = logging.getLogger(__name__)


def node_code_create(*, node_name: str, by: User | None) -> str:
    """Create a one-time code for the node of a name; it can be shown only now. Raises ValueError."""
    node_name = node_name.strip()
    if not node_name or len(node_name) > MAX_NAME or not node_name.isprintable():
        wanted = f"use the --node of its daemon, 1 to {MAX_NAME} printable characters"
        raise ValueError(f"node name {node_name[:130]!r} is invalid; {wanted}")
    expires_at = timezone.now() + CODE_LIFETIME
    row = NodeKey.objects.create(node_name=node_name, key_id=_new_id(), code_expires_at=expires_at, created_by=by)
    return f"{row.key_id}-{_code_secret(row)}"


def node_key_rotate(*, node_name: str, by: User | None) -> NodeKey:
    """Begin to agree on the next key of a node; the current one is used until then. Raises ValueError."""
    if signing_key(node_name) is None:
        raise ValueError(f"node {node_name} has no active key; create a code and enrol it")
    pending = _rotating(node_name)
    return pending or NodeKey.objects.create(node_name=node_name, key_id=_new_id(), created_by=by)


@transaction.atomic
def node_keys_revoke(*, node_name: str, by: User) -> None:
    """Revoke all keys and codes of a node, and with them its use of the shared key."""
    rows = NodeKey.objects.filter(node_name=node_name)
    if not rows.filter(enrolled_at__isnull=False).exists():
        NodeKey.objects.create(node_name=node_name, key_id=_new_id(), created_by=by)
    rows.filter(revoked_at=None).update(revoked_at=timezone.now(), revoked_by=by)


def rotation_order(node_name: str) -> Rotate | None:
    """Return the order by which a node answers to a rotation, or uses its next key; None if none is going on."""
    return next(iter(rotation_orders([node_name])), None)


def rotation_orders(node_names: Collection[str]) -> list[Rotate]:
    """Return `rotation_order` of each of these nodes that has one."""
    unused = NodeKey.objects.filter(node_name__in=node_names, code_expires_at=None, revoked_at=None, used_at=None)
    # The first one that is not agreed on, else the first one that the node has not used yet.
    ordered = sorted(unused, key=lambda row: (row.enrolled_at is None, -row.pk))
    return [
        Rotate(node=row.node_name, key_id=row.key_id, public=derived_pair(settings.NODE_KEY, row.key_id).public)
        for row in {row.node_name: row for row in ordered}.values()
    ]


@transaction.atomic
def node_enrol(*, node_name: str, signed_with: str, enrol: Enrol) -> str:
    """Agree on a key with a node; return the server's public value. Raises Untrusted.

    A code works once: later only the node that used it gets its answer again.
    """
    row = NodeKey.objects.select_for_update().filter(key_id=enrol.key_id, node_name=node_name).first()
    if row is None or row.revoked_at is not None:
        raise Untrusted(f"the code or key of node {node_name} is unknown or revoked", node_name)
    if row.code_expires_at is not None and signed_with != row.key_id:
        raise Untrusted(f"the enrolment of node {node_name} is not signed with its code", node_name)
    pair, digest = derived_pair(settings.NODE_KEY, row.key_id), sha256(enrol.public.encode()).hexdigest()
    if row.enrolled_at is not None:
        if digest != row.public_digest:
            raise Untrusted(f"the code of node {node_name} was used before; create another one", node_name)
        return pair.public
    key = agreed_key(pair, enrol.public, node_name, row.key_id)
    row.wrapped, row.public_digest, row.enrolled_at = _padded(key.secret, row.key_id).hex(), digest, timezone.now()
    row.save(update_fields=["wrapped", "public_digest", "enrolled_at"])
    logger.info("node %s has agreed on key %s", node_name, row.key_id)
    return pair.public


def find_code(node_name: str, key_id: str) -> bytes:
    """Return the key that signs an enrolment: of a one-time code, or the current key of the node; raises Untrusted."""
    row = NodeKey.objects.filter(node_name=node_name, key_id=key_id, revoked_at=None).first()
    if row is None or row.code_expires_at is None or row.used_at is not None:
        return find_key(node_name, key_id)
    if row.code_expires_at < timezone.now():
        raise Untrusted(f"the code of node {node_name} has expired; create another one", node_name)
    return code_key(_code_secret(row), node_name, row.key_id)


def find_key(node_name: str, key_id: str) -> bytes:
    """Return the secret with which a node signs; raises Untrusted with the remedy."""
    return _secret(node_name, key_id, _of_nodes([node_name])[node_name])


def find_attempt_key(node_name: str, key_id: str, *, run: int, attempt: int) -> bytes:
    """Return the secret with which a pod of an attempt signs; raises Untrusted.

    It outlives the rotation of the key that it is derived from, but not its revocation: a training may take weeks.
    """
    rows = _of_nodes([node_name])[node_name]
    replaced = next((row for row in rows if row.key_id == key_id and row.is_replaced), None)
    is_revoked = not any(row.revoked_at is None for row in rows)
    if replaced is None or is_revoked:
        secret = _secret(node_name, key_id, rows)
    else:
        secret = _padded(bytes.fromhex(replaced.wrapped), key_id)
    return attempt_key(Key(key_id, secret), run, attempt).secret


def key_finder(node_names: Collection[str]) -> Callable[[str, str], bytes]:
    """Return `find_key` for these nodes, with one query for all of them; names that no node can have are left out."""
    rows = _of_nodes({name for name in node_names if name.isprintable() and len(name) <= MAX_NAME})
    return lambda node_name, key_id: _secret(node_name, key_id, rows[node_name])


def _of_nodes(node_names: Collection[str]) -> dict[str, list[NodeKey]]:
    """Return the keys of each of these nodes, the oldest first; codes that were not used are left out."""
    rows: dict[str, list[NodeKey]] = {name: [] for name in node_names}
    for row in NodeKey.objects.filter(node_name__in=rows).exclude(enrolled_at=None, revoked_at=None).order_by("pk"):
        rows[row.node_name].append(row)
    return rows


def _secret(node_name: str, key_id: str, rows: Sequence[NodeKey]) -> bytes:
    active = [row for row in rows if row.revoked_at is None]
    if any(not row.is_replaced for row in rows) and not active:
        reason = f"the key of node {node_name} was revoked; enrol it again with a code from the admin"
        raise Untrusted(reason, node_name)
    if key_id == SHARED:
        # During the first rotation of a node with the shared key, until it signs with its own.
        if any(row.used_at is not None or row.code_expires_at is not None for row in active):
            raise Untrusted(f"node {node_name} signs with the shared key, but has a key of its own", node_name)
        return _shared(node_name).secret
    row = next((row for row in active if row.key_id == key_id), None)
    if row is None:
        raise Untrusted(f"node {node_name} signs with an unknown or replaced key; enrol it again", node_name)
    return _padded(bytes.fromhex(row.wrapped), row.key_id)


def key_used(*, node_name: str, key_id: str) -> None:
    """Record that a node has signed with a key, which replaces its earlier ones."""
    if key_id == SHARED:
        return
    now = timezone.now()
    if NodeKey.objects.filter(node_name=node_name, key_id=key_id, used_at=None).update(used_at=now):
        earlier = NodeKey.objects.filter(node_name=node_name, enrolled_at__isnull=False, revoked_at=None)
        earlier.exclude(key_id=key_id).update(revoked_at=now, is_replaced=True)


def signing_key(node_name: str) -> Key | None:
    """Return the key that signs messages to a node: the newest it has agreed on; None if it has none."""
    return signing_keys([node_name])[node_name]


def signing_keys(node_names: Collection[str]) -> dict[str, Key | None]:
    """Return `signing_key` of each of these nodes."""
    return {name: _signing(name, rows) for name, rows in _of_nodes(node_names).items()}


def _signing(node_name: str, rows: Sequence[NodeKey]) -> Key | None:
    active = [row for row in rows if row.revoked_at is None]
    if active:
        return Key(active[-1].key_id, _padded(bytes.fromhex(active[-1].wrapped), active[-1].key_id))
    try:
        return None if rows else _shared(node_name)
    except Untrusted:
        return None


def _shared(node_name: str) -> Key:
    if not settings.SHARED_NODE_KEY:
        reason = (
            f"node {node_name} signs with the shared key, which PARLAB_SHARED_NODE_KEY=0 refuses; enrol it with a code"
            " from the admin"
        )
        raise Untrusted(reason, node_name)
    return shared_key(settings.NODE_KEY, node_name)


def _rotating(node_name: str) -> NodeKey | None:
    pending = NodeKey.objects.filter(code_expires_at=None, enrolled_at=None, revoked_at=None)
    return pending.filter(node_name=node_name).first()


def _new_id() -> str:
    return secrets.token_hex(8)


def _code_secret(row: NodeKey) -> str:
    digest = derived(settings.NODE_KEY, "one-time code", row.node_name, row.key_id)
    return base64.b32encode(digest[:20]).decode().lower()


def _padded(secret: bytes, key_id: str) -> bytes:
    """Encrypt or decrypt a key; each pad is used for one key only."""
    pad = derived(settings.NODE_KEY, "storage", key_id)
    return bytes(left ^ right for left, right in zip(secret, pad, strict=True))
