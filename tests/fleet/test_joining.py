"""`parlab node`: who is given the address of Redis, and a daemon that joins a server with nothing but a code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as current
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from pytest_django.live_server_helper import LiveServer

from parlab.client.http import Refused
from parlab.lab.models import Node, NodeKey
from parlab.lab.services.access.node_keys import node_code_create
from runners.node import joining
from runners.wire.broker_address import opened_address, request_for_address
from runners.wire.trust import Key, Untrusted, code_key, shared_key
from tests.fleet.workers import Workers
from tests.patience import PATIENCE_S
from tests.private import readable_by_others

pytestmark = pytest.mark.django_db(transaction=True)

PATH = "/api/enrolment/redis/"
REMOTE = "redis://:secret@redis-host:6379/0"


def ask(node: str, signer: Key, *, address: str = "10.0.0.7") -> Any:
    """Ask for the address of Redis; return the response and, if it is given, the address."""
    envelope, number = request_for_address(node, signer)
    answer = Client(REMOTE_ADDR=address).post(PATH, envelope, "application/json")
    if answer.status_code != 200:
        return answer.status_code
    assert b"secret" not in answer.content
    return opened_address(answer.json()["sealed"], node, number, signer.secret)


def signer_of(code: str, node: str) -> Key:
    key_id, _, secret = code.partition("-")
    return Key(key_id, code_key(secret, node, key_id))


def test_the_holder_of_a_code_is_given_the_address_until_the_code_expires(user: User, settings: Any) -> None:
    settings.REDIS_URL = REMOTE
    code = node_code_create(node_name="gpu1", by=user)
    assert ask("gpu1", signer_of(code, "gpu1")) == REMOTE
    assert ask("gpu2", signer_of(code, "gpu2")) == 401
    assert ask("gpu1", signer_of(f"{code[:-1]}{'a' if code[-1] != 'a' else 'b'}", "gpu1")) == 401
    NodeKey.objects.update(code_expires_at=timezone.now() - timedelta(seconds=1))
    assert ask("gpu1", signer_of(code, "gpu1")) == 401


def test_the_shared_key_is_enough_where_nodes_may_use_it(settings: Any) -> None:
    settings.REDIS_URL = REMOTE
    assert ask("gpu1", shared_key(current.NODE_KEY, "gpu1")) == REMOTE
    assert ask("gpu1", shared_key(b"another key of a server, long enough", "gpu1")) == 401
    settings.SHARED_NODE_KEY = False
    assert ask("gpu1", shared_key(current.NODE_KEY, "gpu1")) == 401


def test_an_embedded_redis_is_given_to_nodes_of_its_machine_alone(settings: Any) -> None:
    settings.REDIS_URL = "redis://:secret@127.0.0.1:16399/0"
    signer = shared_key(current.NODE_KEY, "gpu1")
    assert ask("gpu1", signer) == 409
    assert ask("gpu1", signer, address="127.0.0.1") == settings.REDIS_URL


def test_the_answer_belongs_to_one_request(settings: Any) -> None:
    settings.REDIS_URL = REMOTE
    signer = shared_key(current.NODE_KEY, "gpu1")
    envelope, number = request_for_address("gpu1", signer)
    sealed = Client().post(PATH, envelope, "application/json").json()["sealed"]
    for node, other, secret in (
        ("gpu2", number, signer.secret),
        ("gpu1", number + 1, signer.secret),
        ("gpu1", number, b"x"),
    ):
        with pytest.raises(Untrusted, match="not sealed with the key of this node"):
            opened_address(sealed, node, other, secret)


@pytest.mark.parametrize("body", [{}, {"version": 2, "node": "a", "key": "", "payload": "{}", "signature": "0"}])
def test_an_unsigned_request_is_refused(body: dict[str, Any]) -> None:
    assert Client().post(PATH, body, "application/json").status_code in (400, 401)


@pytest.mark.slow
def test_a_code_is_all_that_a_node_needs(user: User, broker: str, live_server: LiveServer, tmp_path: Path) -> None:
    state, workers = tmp_path / "state", Workers(broker)
    code = node_code_create(node_name="gpu1", by=user)
    # Not on the server's machine as far as its data directory is concerned: there is none.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PARLAB_", "REDIS_"))}
    environ |= {"PARLAB_DATA_DIR": str(tmp_path / "none"), "NO_PROXY": "*"}
    options = ["--node", "gpu1", "--no-measure", "--state-dir", str(state)]

    def daemon(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "parlab", "node", *arguments, *options]
        return subprocess.Popen(command, env=environ, stderr=(tmp_path / "log").open("ab"))

    started = daemon("--server", live_server.url, "--code", code)
    try:
        workers.until(lambda: Node.objects.filter(name="gpu1").exists() or started.poll() is not None, "the node joins")
        assert started.poll() is None, (tmp_path / "log").read_text()
        assert (state / joining.ADDRESS_FILE).read_text() == broker
        assert readable_by_others(state) == []
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(PATIENCE_S)
    Node.objects.all().delete()
    # The code is used, and the server is away.
    again = daemon("--server", "http://127.0.0.1:9", "--code", code)
    try:
        workers.until(lambda: Node.objects.exists() or again.poll() is not None, "the node comes back")
        assert again.poll() is None, (tmp_path / "log").read_text()
    finally:
        again.send_signal(signal.SIGTERM)
        again.wait(PATIENCE_S)


def test_a_node_of_the_servers_machine_reads_its_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redis_url").write_text("redis://127.0.0.1:1/0")
    (tmp_path / "node_key").write_text("k" * 64)
    started: list[tuple[list[str], str, str]] = []

    def main(arguments: list[str]) -> int:
        started.append((arguments, os.environ["REDIS_URL"], os.environ["PARLAB_NODE_KEY"]))
        return 0

    monkeypatch.setattr("runners.node.daemon.main", main)
    for name in ("REDIS_URL", "PARLAB_NODE_KEY", "PARLAB_NODE_KEY_FILE"):
        monkeypatch.setenv(name, "")
    arguments = ["--slots", "2", "--state-dir", str(tmp_path / "state")]
    assert joining.main("http://127.0.0.1:8000", "", tmp_path, arguments) == 0
    assert started == [(arguments, "redis://127.0.0.1:1/0", "k" * 64)]


@pytest.mark.parametrize(
    ("code", "message"),
    [("", "this node has no key for http://server.example:1: add --code"), ("half", "--code is incomplete")],
)
def test_a_message_names_what_else_a_node_needs(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("REDIS_URL", "PARLAB_NODE_KEY", "PARLAB_NODE_KEY_FILE"):
        monkeypatch.setenv(name, "")
    assert joining.main("http://server.example:1", code, None, ["--state-dir", str(tmp_path / "state")]) == 2
    assert message in capsys.readouterr().err


def test_a_refusal_has_a_remedy(live_server: LiveServer, tmp_path: Path) -> None:
    server = joining.Server(live_server.url, None)
    with pytest.raises(Refused, match=r"not accepted for this node; check --node \(a code is for one name\)"):
        joining.redis_address(server, "gpu1", shared_key(b"a key of nobody, but a long one too", "gpu1"), tmp_path)
    assert not (tmp_path / joining.ADDRESS_FILE).exists()
