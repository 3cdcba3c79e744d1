"""What `span` does on each node: messages, names for mpirun, mpirun's daemon, the variables of the ranks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runners.engines.process.events import Printer
from runners.node.launch.ports import OUTPUT, output_name
from runners.node.launch.share import Share
from runners.supervisor import processes, streams

END_WITHIN_S = 5.0
"""Time for the processes of a node to end by themselves after the launcher has ended."""
AGENT = "PARLAB_SPAN_AGENT"
"""Variable with the name of the socket at which the first node takes the commands of mpirun."""
DEATHS = "PARLAB_DEATHS"
"""Variable with the path of the file in which runners.node.launch.ranks notes the ranks of this node that died."""
DEATHS_FILE = "deaths"
"""Its name in the run directory."""
RUN_DIRECTORY = "PARLAB_RUN_DIRECTORY"
"""Variable with the run directory of this node, where its configuration is."""
ENVIRONMENT = "span.json"
"""File in the run directory with these variables, for ranks that inherit the environment of the first node."""
_OF_NODES = "240."
"""Names of nodes for mpirun: reserved addresses, which are neither looked up nor taken for this machine."""
_DAEMON = re.compile(r"(?:^|[;\s])(?:\S*/)?(prted|orted)\s+(.*)", re.DOTALL)


def node_label(node_rank: int) -> str:
    """Return the name under which mpirun starts its daemon on a node."""
    return f"{_OF_NODES}{node_rank >> 16 & 255}.{node_rank >> 8 & 255}.{node_rank & 255}"


def labelled_rank(label: str) -> int:
    """Return the node_rank of a name; raises ValueError for a name of something else."""
    if not re.fullmatch(r"240\.\d{1,3}\.\d{1,3}\.\d{1,3}", label):
        raise ValueError(f"{label} is not a node of this run; update runners on all nodes")
    high, middle, low = (int(part) for part in label.split(".")[1:])
    return high << 16 | middle << 8 | low


def label_file(share: Share, ranks_per_node: int) -> str:
    """Return the hostfile of mpirun."""
    return "".join(f"{node_label(node)} slots={ranks_per_node}\n" for node in range(share.nodes))


def daemon_command(command: str) -> tuple[list[str], dict[str, str]]:
    """Return the argv and variables of mpirun's daemon on this node, from the line that the other node would run.

    Only the daemon of this node's own installation is started, with the arguments of the line.
    """
    match = _DAEMON.search(command)
    if match is None:
        raise ValueError(f"not a daemon of mpirun: {command[:200]}; use Open MPI 4 or newer on all nodes")
    program = installed(match[1])
    if program is None:
        raise FileNotFoundError(f"{match[1]} is not installed; install Open MPI on this node, as on the first one")
    variables = {}
    if "PRTE_PREFIX=" in command:
        # mpirun was called by its path: the installation may be anywhere.
        prefix = str(Path(program).parent.parent)
        library = ":".join(filter(None, [f"{prefix}/lib", os.environ.get("LD_LIBRARY_PATH", "")]))
        variables = {"PRTE_PREFIX": prefix, "PMIX_PREFIX": prefix, "LD_LIBRARY_PATH": library}
    return [program, *shlex.split(match[2])], variables


def installed(program: str) -> str | None:
    """Return the path of a program of this node, preferably of its virtual environment."""
    beside = shutil.which(program, path=str(Path(sys.executable).parent))
    return beside or shutil.which(program)


class Wire:
    """Messages in both directions of a connection: one JSON object a line."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = b""
        self.is_open = True

    def send(self, **message: Any) -> None:
        """Send a message; an end that is gone is noticed when it is read."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """Return what has arrived; sets is_open to False once the other end has closed."""
        try:
            data = self.connection.recv(1 << 16)
        except OSError:
            data = b""
        self.is_open = bool(data)
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]


class SpanNode:
    """What a node does, the first one too: it starts mpirun's daemon here, and tells of ranks that died here."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.directory = Path.cwd()
        self.daemon: subprocess.Popen[bytes] | None = None
        self._deaths = self.directory / DEATHS_FILE
        self._deaths.unlink(missing_ok=True)

    def environment(self, port: int) -> dict[str, str]:
        """Return the variables of the ranks of this node, and leave them in the run directory."""
        path = ":".join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        added = {
            "MASTER_ADDR": self.share.master_address,
            "MASTER_PORT": str(port),
            OUTPUT: output_name(),
            DEATHS: str(self._deaths),
            RUN_DIRECTORY: str(self.directory),
            "PATH": path,
        }
        own = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", processes.MARKER, streams.VARIABLE)
        stored = added | {name: os.environ[name] for name in own if name in os.environ}
        draft = self.directory / f".{ENVIRONMENT}"
        draft.write_text(json.dumps(stored))
        draft.rename(self.directory / ENVIRONMENT)
        return added

    def start_daemon(self, command: str, port: int) -> None:
        """Start mpirun's daemon on this node; raises OSError or ValueError if that is not possible."""
        argv, variables = daemon_command(command)
        self.daemon = subprocess.Popen(
            argv,
            env={**without_slurm(os.environ), **variables, **self.environment(port)},
            stdin=subprocess.DEVNULL,
            preexec_fn=processes.die_with(os.getpid()),  # noqa: PLW1509  # one thread
        )

    def has_death(self) -> bool:
        """Whether a rank of this node has died."""
        return self._deaths.exists()

    def note_death(self) -> None:
        """Record that the ranks of this node cannot run."""
        self._deaths.touch()

    def finish(self, code: int, cause: int | None, reason: str) -> int:
        """End the daemon of this node; return the exit code of the node.

        `cause` is the node where the first rank died, None if no rank died before the launcher ended.
        """
        if self.daemon is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.daemon.wait(END_WITHIN_S)
            self.daemon.kill()
            self.daemon.wait()
        if code == 0 or cause == self.share.node_rank:
            return code
        # The rank is that of the node itself.
        Printer(-1 - self.share.node_rank).emit("error", traceback=reason, reason=reason)
        return 1


def without_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which mpirun does not look for the nodes of a job of Slurm."""
    return {name: value for name, value in environment.items() if not name.startswith("SLURM_")}
