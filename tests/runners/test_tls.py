"""Redis behind TLS with a certificate that the owner has made: settings as in docs/operate/security.md."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from runners.supervisor.shipping import BrokerAway, Outgoing
from runners.wire.broker import Broker
from runners.wire.keys import NodeKeys
from runners.wire.protocol import INGEST_QUEUE, Batch


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """Make a self-signed certificate for 127.0.0.1, as the documentation describes."""
    key, cert = directory / f"{name}.key", directory / f"{name}.crt"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "365", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return key, cert


class Terminator:
    """What stunnel does: accepts TLS and passes everything on to a Redis without it."""

    def __init__(self, key: Path, cert: Path, target: tuple[str, int]) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(cert, key)
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[plain], daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client, server = (
                self._context.wrap_socket(plain, server_side=True),
                socket.create_connection(self._target),
            )
            threading.Thread(target=self._pass, args=[server, client], daemon=True).start()
            self._pass(client, server)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)


@pytest.fixture
def terminator(tmp_path: Path, redis_url: str) -> Iterator[Terminator]:
    """TLS in front of the Redis of the tests."""
    parts = urlsplit(redis_url)
    terminator = Terminator(*certificate(tmp_path, "redis"), (str(parts.hostname), int(parts.port or 0)))
    yield terminator
    terminator.close()


def test_a_node_ships_over_tls_and_refuses_another_certificate(
    terminator: Terminator, tmp_path: Path, redis_url: str
) -> None:
    _, other = certificate(tmp_path, "other")
    keys = NodeKeys(tmp_path, "gpu1", b"shared")
    batch = Outgoing(Batch(run=1, attempt=1, node="gpu1", sequence=0, next_sequence=1).to_wire())
    url, settings = f"rediss://127.0.0.1:{terminator.port}", "?ssl_cert_reqs=required&ssl_ca_certs="
    with pytest.raises(BrokerAway, match=r"(?i)certificate"):
        Broker(f"{url}/1{settings}{other}", "gpu1", keys).send_batches([batch])
    Broker(f"{url}/0{settings}{tmp_path / 'redis.crt'}", "gpu1", keys).send_batches([batch])
    assert redis.Redis.from_url(redis_url).llen(INGEST_QUEUE) == 1
    with redis.Redis.from_url(f"{url}/0{settings}{tmp_path / 'redis.crt'}") as client:
        assert client.ping()
