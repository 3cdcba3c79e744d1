"""Nodes with an address each: network namespaces on a bridge of this machine. Needs root and the program `ip`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import redis

from parlab.embedded import free_port, redis_command
from tests.patience import wait_for

SUBNET = "198.19.7.0/24"
"""Part of the range for network tests (RFC 2544)."""
SERVER = "198.19.7.254"
DEVICE = "data0"


class Network:
    """A bridge, a namespace for each node, and a Redis that all of them reach."""

    def __init__(self, directory: Path, count: int) -> None:
        number = os.getpid() % 100_000
        self._bridge, self.names = f"plb{number}", [f"parlab-{number}-{node}" for node in range(count)]
        self._directory = directory
        self._redis: subprocess.Popen[bytes] | None = None
        self.url = ""

    def open(self) -> None:
        """Create everything; raises OSError or CalledProcessError where this is not allowed."""
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("address", "add", f"{SERVER}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for node, name in enumerate(self.names):
            outer = f"{self._bridge}n{node}"
            _ip("netns", "add", name)
            _ip("link", "add", outer, "type", "veth", "peer", "name", DEVICE, "netns", name)
            _ip("link", "set", outer, "master", self._bridge, "up")
            _ip("-n", name, "address", "add", f"{self.address(node)}/24", "dev", DEVICE)
            _ip("-n", name, "link", "set", DEVICE, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        self._start_redis()

    def address(self, node: int) -> str:
        """Return the address of a node."""
        return f"198.19.7.{node + 1}"

    def prefix(self, node: int) -> list[str]:
        """Return the arguments that start a command on a node."""
        return ["ip", "netns", "exec", self.names[node]]

    def close(self) -> None:
        """Delete everything, also what is only half there."""
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", self._bridge], check=False, capture_output=True)

    def _start_redis(self) -> None:
        port = free_port()
        command = redis_command(port, self._directory)
        config = self._directory / "redis.conf"
        text = config.read_text().replace("127.0.0.1", SERVER)
        config.write_text(f"{text}\nprotected-mode no\n")
        self._redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.url = f"redis://{SERVER}:{port}/0"
        client = redis.Redis.from_url(self.url)

        def answers() -> bool:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        wait_for(answers, "Redis answers on the bridge")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
