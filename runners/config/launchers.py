"""The launchers, one row each: the program that starts one process per rank, and what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OPEN_MPI = {
    # A daemon in a container often runs as root.
    **{f"{name}_ALLOW_RUN_AS_ROOT{suffix}": "1" for name in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")},
    # As torchrun does: the number of ranks of the layout, each on any core.
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}
"""Variables for mpirun of Open MPI 5 (PRTE_) and 4 (OMPI_); other MPIs ignore them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Launcher:
    """How one launcher is called; without module and program the engine is started alone."""

    name: str
    """Value of `launcher.kind`."""
    module: str = ""
    """Python module of a launcher that passes torch's variables to its ranks and finds a free port itself."""
    program: str = ""
    """Program of any other launcher: it gets a free port, and starts each rank through runners.node.launch.ranks."""
    options: tuple[str, ...] = ()
    """Its arguments on one node; {ranks} is the number of ranks, {port} a free port."""
    span_options: tuple[str, ...] = ()
    """Its arguments on each of several nodes, where it starts the ranks of its own node.

    {nodes} and {node_rank} count nodes, {ranks} are those of a node, {all_ranks} those of the run, {address} is this
    node's, {master} and {port} are where the ranks meet, {hostfile} lists all nodes.
    """
    spans_by_itself: bool = False
    """It is called on the first node only, and starts the ranks of all nodes: see runners.node.launch.span."""
    spans_slurm_only: bool = False
    """Its nodes must be those of one job of Slurm."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the launcher needs."""
    cpu_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that it needs for ranks on the CPU."""

    @property
    def starts_ranks(self) -> bool:
        """Whether it starts one process per rank."""
        return bool(self.module or self.program)

    @property
    def needs_port(self) -> bool:
        """Whether it must be given a free port."""
        return bool(self.program)


TORCHRUN = Launcher(
    name="torchrun",
    module="torch.distributed.run",
    # Without an address, torchrun looks up the name of the machine, and hangs if the name does not resolve.
    options=("--nnodes=1", "--nproc-per-node={ranks}", "--standalone", "--local-addr=127.0.0.1"),
    span_options=(
        "--nnodes={nodes}",
        "--node-rank={node_rank}",
        "--nproc-per-node={ranks}",
        "--rdzv-backend=static",
        # Seconds until a node gives up waiting for an address that it cannot reach.
        "--rdzv-conf=timeout=60",
        "--master-addr={master}",
        "--master-port={port}",
        "--local-addr={address}",
    ),
)
PLAIN = Launcher(name="plain")
DEEPSPEED = Launcher(
    name="deepspeed",
    program="deepspeed",
    options=(
        "--num_gpus={ranks}",
        "--master_addr=127.0.0.1",
        "--master_port={port}",
        "--no_local_rank",
        "--no_python",
    ),
    span_options=(
        "--hostfile={hostfile}",
        # Each node starts its own ranks, so that none is reached by ssh.
        "--no_ssh",
        "--node_rank={node_rank}",
        "--master_addr={master}",
        "--master_port={port}",
        "--no_local_rank",
        "--no_python",
    ),
    # Otherwise it counts the GPUs of the machine, and fails if there are none.
    cpu_environment={"DS_ACCELERATOR": "cpu"},
)
MPIRUN = Launcher(
    name="mpirun",
    program="mpirun",
    options=("-np", "{ranks}"),
    span_options=("-np", "{all_ranks}", "--hostfile", "{hostfile}", "--map-by", "slot"),
    spans_by_itself=True,
    environment=OPEN_MPI,
)
SRUN = Launcher(
    name="srun",
    program="srun",
    options=("--nodes=1", "--ntasks={ranks}", "--kill-on-bad-exit=1"),
    span_options=(
        "--nodes={nodes}",
        "--ntasks={all_ranks}",
        "--ntasks-per-node={ranks}",
        "--distribution=block",
        "--kill-on-bad-exit=1",
    ),
    spans_by_itself=True,
    spans_slurm_only=True,
)

LAUNCHERS = {row.name: row for row in (TORCHRUN, PLAIN, DEEPSPEED, MPIRUN, SRUN)}
"""Name -> launcher, in the order in which forms and messages list them."""
