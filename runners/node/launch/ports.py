"""A free port for the ranks of a run: `python -m runners.node.launch.ports COMMAND` runs a launcher with one.

torchrun finds a port itself. Other launchers pass on MASTER_PORT, or have the same default for every run on a machine.
Another program may take the port before the ranks use it: then the first rank exits with PORT_TAKEN, and the launcher
is started again with another port.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys

from runners.engines.process.events import Printer
from runners.node.launch.share import LOOPBACK, Share
from runners.supervisor import processes

PORT_TAKEN = 98
"""Exit code of a rank that could not listen at MASTER_PORT (errno EADDRINUSE)."""
REFUSED = 2
"""Exit code of a configuration that cannot run here."""
TRIES = 5
MAY_TRY_AGAIN = "PARLAB_PORT_MAY_BE_TRIED_AGAIN"
"""Variable that is set while a taken port is retried instead of reported."""
OUTPUT = "PARLAB_OUTPUT"
"""Variable that names the pipe of the run: see runners.node.launch.ranks."""
PLACEHOLDER = "{master_port}"


def free_port() -> int:
    """Return a port of this machine that is not in use now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def output_name() -> str:
    """Return a name of this process' standard output for its descendants; empty if it is not a pipe."""
    state = os.fstat(1)
    return f"{socket.gethostname()}:{os.getpid()}:{state.st_ino}" if stat.S_ISFIFO(state.st_mode) else ""


def variables(port: int, address: str = LOOPBACK) -> dict[str, str]:
    """Return the variables of the address at which the ranks meet."""
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port), OUTPUT: output_name()}


def run(argv: list[str]) -> int:
    """Run a launcher, with the port in place of PLACEHOLDER; returns its exit code, negative for a signal."""
    share = Share.from_environment(os.environ)
    # Several nodes have agreed on a port: another one would not be where the others look for it.
    for retries in range(TRIES - 1 if share.nodes == 1 else 0, -1, -1):
        port = share.port or free_port()
        added = variables(port, share.master_address)
        environment = {**os.environ, **added, **({MAY_TRY_AGAIN: "1"} if retries else {})}
        try:
            child = subprocess.Popen(
                [argument.replace(PLACEHOLDER, str(port)) for argument in argv],
                env=environment,
                preexec_fn=processes.die_with(os.getpid()),  # noqa: PLW1509  # one thread
            )
        except OSError as error:
            return refused(argv[0], str(error.strerror))
        code = child.wait()
        if code != PORT_TAKEN or not retries:
            return code
        sys.stderr.write(f"parlab: port {port} is in use; starting again with another port\n")
    raise AssertionError("the last try returns")


def refused(program: str, why: str) -> int:
    """Report that the launcher cannot be started, as an event and as text; return the exit code."""
    kind = os.path.basename(program)
    message = f"{program} cannot be started: {why}; install it on the node, or use launcher.kind torchrun"
    Printer(0).emit("refused", field="launcher.kind", value=kind, message=message)
    sys.stderr.write(f"launcher.kind: {message}\n")
    return REFUSED


def end_like(code: int) -> int:
    """End this process by the signal that ended its child, or return the child's exit code."""
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(end_like(run(sys.argv[1:])))
