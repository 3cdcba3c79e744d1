"""Parent of one rank under mpirun, srun or DeepSpeed's launcher: `python -m runners.node.launch.ranks COMMAND`.

It translates the launcher's variables into torch's, gives the rank its own stream, or else the pipe of the run, and
reports how the rank died, which not every launcher does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from runners.engines.process.events import Printer
from runners.node.launch.ports import OUTPUT, end_like
from runners.node.launch.share import Share
from runners.node.launch.span_node import DEATHS, ENVIRONMENT, RUN_DIRECTORY
from runners.supervisor import processes, streams


class _Names(NamedTuple):
    """Variables of a launcher: rank, number of ranks, and both among those on the machine."""

    rank: str
    size: str
    local_rank: str
    local_size: str


LAUNCHERS: Mapping[str, _Names] = {
    "Open MPI 4 and 5": _Names(
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    "MPICH's Hydra and Intel MPI": _Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "DeepSpeed": _Names("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE"),
    "Slurm": _Names("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}
"""In order of precedence: mpirun within a Slurm allocation has the variables of both."""


def rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; raises ValueError if no launcher has set a rank."""
    for names in LAUNCHERS.values():
        if names.rank in environment and names.size in environment:
            rank, size = environment[names.rank], environment[names.size]
            # Slurm writes 2(x1) for two tasks on each of one node.
            local_size = environment.get(names.local_size, size).partition("(")[0]
            return {
                "RANK": rank,
                "WORLD_SIZE": size,
                "LOCAL_RANK": environment.get(names.local_rank, rank),
                "LOCAL_WORLD_SIZE": local_size,
            }
    variables = ", ".join(names.rank for names in LAUNCHERS.values())
    raise ValueError(f"the rank is unknown: none of {variables} is set; start it with mpirun or srun")


def take_pipe(name: str) -> None:
    """Redirect standard output to the pipe of the run, if it is on this machine.

    Launchers pass on the output of ranks in pieces, which splits lines and mixes those of several ranks.
    """
    host, _, rest = name.partition(":")
    pid, _, inode = rest.partition(":")
    if host != socket.gethostname():
        return
    with contextlib.suppress(OSError, ValueError):
        pipe = os.open(f"/proc/{int(pid)}/fd/1", os.O_WRONLY)
        state = os.fstat(pipe)
        if stat.S_ISFIFO(state.st_mode) and state.st_ino == int(inode):
            os.dup2(pipe, 1)
            os.dup2(pipe, 2)
        os.close(pipe)


def enter_node(environment: Mapping[str, str], local_size: int) -> dict[str, str]:
    """Go to the run directory of this node; return the variables of its ranks where a launcher has not set them.

    mpirun's daemon passes on the environment of its node, srun that of the first node. The run directories of a job of
    Slurm are side by side.
    """
    share = Share.from_environment(environment)
    if share.nodes == 1:
        return {}
    own = dict[str, str]()
    if LAUNCHERS["Open MPI 4 and 5"].rank not in environment and "SLURM_PROCID" in environment:
        first, node_rank = Path(environment[RUN_DIRECTORY]), int(environment["SLURM_PROCID"]) // local_size
        path = first.with_name(f"{first.name}-{node_rank}") if node_rank else first
        own = json.loads((path / ENVIRONMENT).read_text())
    if directory := {**environment, **own}.get(RUN_DIRECTORY):
        os.chdir(directory)
    return own


def note_death(path: str) -> None:
    """Tell runners.node.launch.span that a rank of this node has died."""
    if path:
        with contextlib.suppress(OSError):
            Path(path).touch()


def main(argv: list[str]) -> int:
    """Run one rank and return its exit code, negative for a signal."""
    try:
        added = rank_variables(os.environ)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    os.environ |= enter_node(os.environ, int(added["LOCAL_WORLD_SIZE"]))
    if not streams.take(int(added["RANK"])):
        take_pipe(os.environ.get(OUTPUT, ""))
    # As torchrun and DeepSpeed's launcher do: a script of Python need not be executable.
    is_script = argv[0].endswith(".py") and not os.access(argv[0], os.X_OK)
    child = subprocess.Popen(
        [sys.executable, *argv] if is_script else argv,
        env={**os.environ, **added},
        preexec_fn=processes.die_with(os.getpid()),  # noqa: PLW1509  # one thread
    )
    # Launchers end the other ranks once one has ended: this process must live to report what its rank died of.
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = child.wait()
    if code:
        note_death(os.environ.get(DEATHS, ""))
        Printer(int(added["RANK"])).emit("death", host=socket.gethostname(), code=code)
    return code


if __name__ == "__main__":
    sys.exit(end_like(main(sys.argv[1:])))
