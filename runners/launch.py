"""A configuration and a run's directory -> the command that trains and its environment."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from runners.config import RunConfig
from runners.ports import PLACEHOLDER
from runners.processes import MARKER

SECRETS = ("REDIS_URL", "PARLAB_NODE_KEY", "PARLAB_NODE_KEY_FILE", "CELERY_BROKER_URL")
"""What the daemon needs and a training must not see."""

OPEN_MPI = {
    # A daemon in a container is often root, and knows what it starts.
    **{f"{name}_ALLOW_RUN_AS_ROOT{more}": "1" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM")},
    # As torchrun does: as many ranks as are asked for, each on any core.
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}
"""Variables for mpirun of Open MPI 5 (PRTE_) and 4 (OMPI_); others do not know them."""

_PACKAGE_ROOT = Path(__file__).resolve().parent.parent


def command(config: RunConfig, config_path: Path) -> list[str]:
    """Build the argv of a run on one machine.

    torchrun's standalone rendezvous takes a free port by itself, so two runs on a node cannot collide.
    Raises ValueError for a configuration that one machine cannot start.
    """
    if config.network.apply != "none":
        return [sys.executable, "-m", "runners.links", "--config", str(config_path)]
    return ranks_command(config, config_path)


def ranks_command(config: RunConfig, config_path: Path) -> list[str]:
    """Build the argv that starts the ranks, whatever their links are; raises ValueError as `command` does."""
    if config.cluster.nodes != 1:
        raise ValueError(
            f"cluster.nodes {config.cluster.nodes}: a run starts on one machine only; use 1 and more gpus_per_node,"
            " or network.apply emulate"
        )
    engine = [sys.executable, "-m", config.engine.module, "--config", str(config_path)]
    if config.launcher.kind == "plain" or config.engine.starts_its_own_ranks:
        return engine
    if config.launcher.kind == "torchrun":
        return [*launcher(config), *engine[1:]]
    return [sys.executable, "-m", "runners.ports", *launcher(config), *engine]


def launcher(config: RunConfig, port: str = PLACEHOLDER) -> list[str]:
    """Build what stands before a command so that it starts once for each rank, on this machine.

    torchrun is followed by a script or -m, the others by a program. They need runners.ports, or a free port.
    """
    kind, count = config.launcher.kind, config.world_size
    program = shutil.which(kind, path=str(Path(sys.executable).parent)) or kind
    as_torch_wants = [sys.executable, "-m", "runners.ranks"]
    if kind == "torchrun":
        # Without the address the name of the machine is looked up, which hangs where it has none.
        options = ["--nnodes=1", f"--nproc-per-node={count}", "--standalone", "--local-addr=127.0.0.1"]
        return [sys.executable, "-m", "torch.distributed.run", *options]
    if kind == "deepspeed":
        options = [f"--num_gpus={count}", "--master_addr=127.0.0.1", f"--master_port={port}", "--no_local_rank"]
        return [program, *options, "--no_python", *as_torch_wants]
    if kind == "mpirun":
        return [program, "-np", str(count), *as_torch_wants]
    if kind == "srun":
        return [program, "--nodes=1", f"--ntasks={count}", "--kill-on-bad-exit=1", *as_torch_wants]
    return []


def additions(config: RunConfig, base: Mapping[str, str], marker: str) -> dict[str, str]:
    """Return the variables that a run gets on top of the node's own; NCCL's and CUDA's stay as the node has them."""
    paths = [str(_PACKAGE_ROOT), *filter(None, [base.get("PYTHONPATH", "")])]
    added = {
        "OMP_NUM_THREADS": str(config.launcher.threads_per_rank),
        MARKER: marker,
        "PYTHONPATH": ":".join(paths),
        "PYTHONUNBUFFERED": "1",
    }
    # All ranks are on this machine: gloo need not find an address for the machine's name.
    added["GLOO_SOCKET_IFNAME"] = base.get("GLOO_SOCKET_IFNAME", "lo")
    if config.launcher.kind == "mpirun":
        added |= OPEN_MPI
    if config.launcher.kind == "deepspeed" and config.cluster.device == "cpu":
        added["DS_ACCELERATOR"] = "cpu"  # or it counts GPUs, and finds none
    return added


def hang_timeout_s(config: RunConfig) -> int | None:
    """Return the seconds without a step after which a run counts as hung; None if its engine reports no progress."""
    return config.launcher.hang_timeout_s if config.engine.reports_progress else None


def without_secrets(base: Mapping[str, str]) -> dict[str, str]:
    """Copy an environment without what only the daemon may know."""
    return {name: value for name, value in base.items() if name not in SECRETS}


def shell_line(argv: list[str], added: Mapping[str, str]) -> str:
    """Write a command so that a person can paste it into a shell and get the same run."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(added.items()) if name != MARKER]
    return " ".join([*assignments, shlex.join(argv)])
