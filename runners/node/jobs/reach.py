"""Whether a compute node reaches the Redis of its login node, and the start of its shipping.

Apart from runners.node.jobs.ship, so that the supervisor does not import what only the shipping needs.
"""

from __future__ import annotations

import os
import sys

from runners.node.jobs.state import JobDir, JobStateDir
from runners.wire.protocol import login_key

SHIPPER = "runners.node.jobs.ship"
CONNECT_S = 3.0
FLUSH_S = 5.0
"""Time at the end of a run for the answers to its last batches; then the login node asks for them."""


def why_not(state: JobStateDir) -> str:
    """Return why this node cannot ship; empty if it reaches the Redis of its login node."""
    settings = state.read_broker()
    if settings is None:
        return "its daemon was started with PARLAB_SLURM_SHIP=login"
    import redis  # heavy, and pods that post over HTTP do without

    try:
        client = redis.Redis.from_url(
            settings["url"], socket_timeout=CONNECT_S, socket_connect_timeout=CONNECT_S, retry=None
        )
        with client:
            is_same = client.exists(login_key(state.id))
    except (redis.RedisError, OSError, ValueError) as error:
        return f"this node does not reach Redis: {str(error)[:200]}"
    return "" if is_same else "another Redis answers on this node at the address that the login node uses"


def start(run: JobDir, module: str) -> int:
    """Start to ship a run in a process that is no descendant; return the pipe that ends it when it is closed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(reader)
        os.waitpid(child, 0)
        return writer
    # Its parent ends at once, so that the supervisor, which ends all its descendants, does not count it among them.
    if not os.fork():
        os.setsid()
        os.dup2(reader, 0)
        output = os.open(run.path / "shipper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execv(sys.executable, [sys.executable, "-m", module, str(run.path)])
    os._exit(0)
