"""Several nodes on one machine, in network namespaces or as addresses of loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.links.nodes import filled, local_address
from tests.patience import PATIENCE_S, wait_for
from tests.runners.conftest import ROOT
from tests.runners.test_links import needs_links

# Each node talks to the server of this machine, and listens for its neighbours at its own address.
NODE = """
import socket, sys, time
node, address, port, log = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
listener = socket.create_server((address, 4711))
with socket.create_connection(("127.0.0.1", port)) as server:
    server.sendall(b"ping")
    answer = server.recv(4).decode()
while True:
    try:
        neighbour = socket.create_connection((f"198.18.0.{(node + 1) % 2 + 1}", 4711), timeout=5)
        break
    except OSError:
        time.sleep(0.05)
with open(log, "a") as file:
    print(node, neighbour.getsockname()[0], answer, file=file)
time.sleep(600)
"""
# As nobody, where the tests run as root; sh, because nobody may not read this Python's files.
AS_NOBODY = """
import os, sys
from runners.links.nodes import main
if os.geteuid() == 0:
    os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def port() -> Iterator[int]:
    """Port of a server on this machine that answers whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4)
                    connection.sendall(b"pong")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)


@needs_links
def test_nodes_in_namespaces_reach_each_other_and_the_server_of_the_machine(tmp_path: Path, port: int) -> None:
    script, log = tmp_path / "node.py", tmp_path / "log"
    script.write_text(NODE)
    log.touch()
    command = [sys.executable, str(script), "{node}", "{address}", str(port), str(log)]
    nodes = subprocess.Popen(
        [sys.executable, "-m", "runners.links.nodes", "--count", "2", "--relay", str(port), "--", *command], cwd=ROOT
    )
    try:
        wait_for(lambda: len(log.read_text().splitlines()) == 2, "both nodes have reached their neighbour")
        assert sorted(log.read_text().splitlines()) == ["0 198.18.0.1 pong", "1 198.18.0.2 pong"]
    finally:
        nodes.send_signal(signal.SIGTERM)
        code = nodes.wait(PATIENCE_S)
    assert code == 0
    left = subprocess.run(["pgrep", "-f", str(script)], capture_output=True, check=False)
    assert left.stdout == b""


def test_without_rights_nodes_are_addresses_of_loopback(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo {node} {address}; exec sleep 600"]
    nodes = subprocess.Popen(
        [sys.executable, "-c", AS_NOBODY, "--count", "3", "--relay", "6379", "--", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert nodes.stdout is not None
    try:
        lines = sorted(nodes.stdout.readline() for _ in range(3))
    finally:
        nodes.send_signal(signal.SIGTERM)
        nodes.wait(PATIENCE_S)
        nodes.stdout.close()
    assert lines == [b"0 127.0.0.2\n", b"1 127.0.0.3\n", b"2 127.0.0.4\n"]


def test_without_rights_a_delay_is_refused_with_the_reason() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, "--relay", "6379", "--delay-ms", "5", "--", "true"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert "--delay-ms and --bandwidth-gbps: emulated links require root" in done.stderr


def test_each_node_has_its_own_command_and_address() -> None:
    assert filled(["daemon", "n{node}", "{address}"], 3, "198.18.0.4") == ["daemon", "n3", "198.18.0.4"]
    assert [local_address(node) for node in (0, 253, 254)] == ["127.0.0.2", "127.0.0.255", "127.0.1.0"]
