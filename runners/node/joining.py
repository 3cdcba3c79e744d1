"""`parlab node --server URL`: what a daemon needs to reach a server, then the daemon.

Server and node exchange messages over Redis alone. The address of Redis comes from the environment, from the data
directory of a server on this machine, or from the server, which gives it to the holder of a one-time code or of a key.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from parlab.client.http import Connection, Refused, Unreachable
from parlab.client.settings import server_data_dir
from runners.node import daemon
from runners.node.daemon_settings import parse
from runners.node.rundir import write_atomically
from runners.wire.broker_address import opened_address, request_for_address
from runners.wire.keys import KEY_FILE, NodeKeys
from runners.wire.trust import Key, code_key, shared_key

WRONG_USAGE = 2
ADDRESS_FILE = "redis_url"
"""The address of Redis in the state directory, for starts while the server is away."""

log = logging.getLogger(__name__)


class Server(NamedTuple):
    """A server, by its address, and its data directory if it runs on this machine."""

    url: str
    data: Path | None

    def stored(self, name: str) -> str:
        """Return a file of the data directory; empty if there is none or this account may not read it."""
        try:
            return (self.data / name).read_text().strip() if self.data else ""
        except OSError:
            return ""


def main(url: str, code: str, data: Path | None, arguments: list[str]) -> int:
    """Enrol with the code if the node has no key yet, then run the daemon; `arguments` are further ones of it."""
    options = parse(arguments)
    is_here = (urlsplit(url).hostname or "") in ("127.0.0.1", "::1", "localhost", socket.gethostname())
    server = Server(url.rstrip("/"), data or (server_data_dir() if is_here else None))
    has_key = (options.state_dir / KEY_FILE).exists()
    try:
        if not (has_key or code):
            os.environ.update(node_key(server, os.environ))
        if not os.environ.get("REDIS_URL"):
            signer = _code(code, options.node) if code and not has_key else _key(options)
            os.environ["REDIS_URL"] = redis_address(server, options.node, signer, options.state_dir)
    except (ValueError, OSError, Refused) as error:
        sys.stderr.write(f"parlab: {error}\n")
        return WRONG_USAGE
    if code and not has_key and (failed := daemon.main(["enrol", *arguments, "--code", code])):
        return failed
    return daemon.main(arguments)


def node_key(server: Server, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with the shared key that the environment lacks. Raises ValueError with the remedy."""
    if environment.get("PARLAB_NODE_KEY") or environment.get("PARLAB_NODE_KEY_FILE"):
        return {}
    if key := server.stored("node_key"):
        return {"PARLAB_NODE_KEY": key}
    raise ValueError(
        f"this node has no key for {server.url}: add --code with a one-time code of an administrator (admin, Node"
        " keys), or --data with the data directory of a server on this machine, or set PARLAB_NODE_KEY"
    )


def redis_address(server: Server, node: str, signer: Key, state_dir: Path) -> str:
    """Return the URL of Redis, from the server or as it was stored. Raises Refused, Unreachable, ValueError."""
    if address := server.stored("redis_url"):
        return address
    path, (envelope, number) = state_dir / ADDRESS_FILE, request_for_address(node, signer)
    try:
        answer = Connection(server.url, "", timeout_s=20).json("POST", "/api/enrolment/redis/", envelope)
    except Unreachable as error:
        if not path.exists():
            raise
        log.warning("%s; using the address of Redis of the last start", error)
        return path.read_text()
    address = opened_address(answer["sealed"], node, number, signer.secret)
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, address)
    return address


def _code(code: str, node: str) -> Key:
    key_id, _, secret = code.strip().partition("-")
    if not key_id or not secret:
        raise ValueError("--code is incomplete; an administrator creates one in the admin, Node keys")
    return Key(key_id, code_key(secret, node, key_id))


def _key(options: argparse.Namespace) -> Key:
    """Return the key of this node: its own, else the one that the shared key gives it."""
    if (options.state_dir / KEY_FILE).exists():
        return NodeKeys(options.state_dir, options.node, None).current()
    path = os.environ.get("PARLAB_NODE_KEY_FILE", "")
    shared = os.environ.get("PARLAB_NODE_KEY") or Path(path).read_text()
    return shared_key(shared.strip().encode(), options.node)
