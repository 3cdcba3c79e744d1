"""The keys of a node: derived from the shared key, or its own, agreed with the server and stored in STATE/key.json."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from runners.node.rundir import write_atomically
from runners.wire.agreement import Pair, agreed_key, new_pair
from runners.wire.trust import Key, Untrusted, shared_key

KEY_FILE = "key.json"


class NodeKeys:
    """The keys with which a node signs and checks messages."""

    def __init__(self, root: Path, node: str, shared: bytes | None) -> None:
        """`shared` is the shared key of small teams; a key of the node's own in `root` takes precedence."""
        self._path = root / KEY_FILE
        self._node = node
        self._shared = shared_key(shared, node) if shared else None
        self._lock = threading.Lock()
        self._own, self._next, self._answer = self._stored()

    @property
    def is_missing(self) -> bool:
        """Whether this node cannot sign anything."""
        return self._own is None and self._shared is None

    def current(self) -> Key:
        """Return the key that signs; raises Untrusted if there is none."""
        key = self._own or self._shared
        if key is None:
            raise Untrusted("this node has no key; enrol it with a code, or set PARLAB_NODE_KEY")
        return key

    def find(self, node: str, key_id: str) -> bytes:
        """Return the secret of the current or the next key of this node; raises Untrusted."""
        if node != self._node:
            raise Untrusted(f"meant for node {node}, this is {self._node}")
        for key in (self._own or self._shared, self._next):
            if key is not None and key.id == key_id:
                return key.secret
        raise Untrusted(f"signed with the key {key_id or 'that is shared'}, which this node does not have")

    def promote(self, key_id: str) -> bool:
        """Use the next key if the server has signed with it; return whether it has changed."""
        with self._lock:
            if self._next is None or self._next.id != key_id:
                return False
            self._own, self._next, self._answer = self._next, None, ""
            self._store()
            return True

    def offer(self, key_id: str, public: str) -> str | None:
        """Agree on the next key with the server's public value; return the node's, the same for the same key.

        None if the key is already the current one.
        """
        with self._lock:
            if self._own is not None and self._own.id == key_id:
                return None
            if self._next is None or self._next.id != key_id:
                pair = new_pair()
                self._next, self._answer = agreed_key(pair, public, self._node, key_id), pair.public
                self._store()
            return self._answer

    def enrol(self, pair: Pair, key_id: str, public: str) -> None:
        """Store the first key of this node's own."""
        with self._lock:
            self._own, self._next = agreed_key(pair, public, self._node, key_id), None
            self._store()

    def _stored(self) -> tuple[Key | None, Key | None, str]:
        try:
            content: dict[str, Any] = json.loads(self._path.read_text())
        except FileNotFoundError:
            return None, None, ""
        if content["node"] != self._node:
            raise ValueError(f"{self._path} belongs to node {content['node']}, not {self._node}; use its --node")
        return _key_of(content["key"]), _key_of(content["next"]), content["answer"]

    def _store(self) -> None:
        content = {"node": self._node, "key": _written(self._own), "next": _written(self._next), "answer": self._answer}
        write_atomically(self._path, json.dumps(content), sync=True)


def _key_of(content: Any) -> Key | None:
    return Key(content["id"], bytes.fromhex(content["secret"])) if content else None


def _written(key: Key | None) -> dict[str, str] | None:
    return {"id": key.id, "secret": key.secret.hex()} if key else None
