"""From a configuration and a run directory to the command of the run and its environment."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from parlab.client.stopping import SAVED_STEP
from runners.config import RunConfig
from runners.config.engines import engine_names
from runners.node.launch.ports import PLACEHOLDER
from runners.node.launch.share import ALONE, HOSTFILE, Share, hostfile
from runners.node.launch.span_node import label_file
from runners.supervisor.processes import MARKER

_PACKAGE_ROOT = Path(__file__).resolve().parents[3]
_PYTHON = Path(sys.executable).name
"""Python of each node, wherever it is there: runners.node.launch.span sets PATH."""
OUTSIDE_SLURM = (
    "launcher.kind {launcher} starts ranks on {nodes} nodes only within one job of Slurm, and this pool has none;"
    " use torchrun, deepspeed or mpirun, or a pool whose daemon runs with --slurm"
)


def command(config: RunConfig, config_path: Path, share: Share = ALONE) -> list[str]:
    """Build the argv of a run on this node.

    On one node torchrun's standalone rendezvous takes a free port by itself, so two runs on a node cannot collide.
    Raises ValueError for a configuration that these nodes cannot start.
    """
    check_span(config, share.nodes, is_slurm=None)
    if config.network.apply != "none":
        return [sys.executable, "-m", "runners.links", "--config", str(config_path)]
    ranks = ranks_command(config, config_path, share)
    if config.launcher.container is None or config.engine.is_external:  # engine command starts the container itself
        return ranks
    return [sys.executable, "-m", "runners.node.launch.contained", "--config", str(config_path), "--", *ranks]


def check_span(config: RunConfig, nodes: int, *, is_slurm: bool | None) -> None:
    """Raise ValueError if the engine or launcher of a run cannot start on these nodes.

    `is_slurm`: whether they are nodes of one job of Slurm; None: not asked.
    """
    wanted = 1 if config.network.apply == "emulate" else config.cluster.nodes
    if nodes != wanted:
        raise ValueError(f"cluster.nodes {wanted}: the server has assigned {nodes} node(s); update server and nodes")
    if nodes == 1:
        return
    if not config.engine.may_span_nodes:
        choice = ", ".join(engine_names(lambda row: row.may_span_nodes))
        raise ValueError(f"cluster.nodes {nodes}: engine {config.engine.name} runs on one node; use 1, or {choice}")
    if is_slurm is False and config.starter.spans_slurm_only:
        raise ValueError(OUTSIDE_SLURM.format(launcher=config.starter.name, nodes=nodes))


def host_lines(config: RunConfig, share: Share) -> str:
    """Return the hostfile of a run over several nodes, in the form that its launcher needs."""
    ranks = config.world_size // share.nodes
    return label_file(share, ranks) if config.starter.spans_by_itself else hostfile(share, ranks)


def ranks_command(config: RunConfig, config_path: Path, share: Share) -> list[str]:
    """Build the argv that starts the ranks of this node, without emulated links."""
    python = sys.executable if config.engine.is_external else python_of(config)
    engine = [python, "-m", config.engine.module, "--config", str(config_path)]
    if not config.starter.starts_ranks or config.engine.starts_its_own_ranks:
        return engine
    if share.nodes > 1 and config.starter.spans_by_itself:
        # Each node has the configuration in its own run directory, which runners.node.launch.ranks enters.
        return [*launcher(config, share), _PYTHON, "-m", config.engine.module, "--config", config_path.name]
    if config.starter.needs_port:
        return [python, "-m", "runners.node.launch.ports", *launcher(config, share), *engine]
    return [*launcher(config, share), *engine[1:]]


def launcher(config: RunConfig, share: Share = ALONE, port: str = PLACEHOLDER) -> list[str]:
    """Return the arguments that, before a command, start it once per rank on this node; none for one process.

    A launcher that is a module must be followed by a script or -m, one that is a program by a program. The latter
    needs runners.node.launch.ports in front of it, or a free port.
    """
    row, python = config.starter, python_of(config)
    options = [option.format(ranks=config.world_size, port=port) for option in row.options]
    if share.nodes > 1:
        values = {
            "ranks": config.world_size // share.nodes,
            "all_ranks": config.world_size,
            "nodes": share.nodes,
            "node_rank": share.node_rank,
            "address": share.address,
            "master": share.master_address,
            "port": share.port,
            "hostfile": HOSTFILE,
        }
        options = [option.format(**values) for option in row.span_options]
    if row.module:
        return [python, "-m", row.module, *options]
    if not row.program:
        return []
    program = row.program if config.launcher.container else beside_python(row.program)
    if share.nodes > 1 and row.spans_by_itself:
        return [
            sys.executable,
            "-m",
            "runners.node.launch.span",
            program,
            *options,
            _PYTHON,
            "-m",
            "runners.node.launch.ranks",
        ]
    return [program, *options, python, "-m", "runners.node.launch.ranks"]


def python_of(config: RunConfig) -> str:
    """Return the Python of the ranks: this one, or that of their container or pod."""
    if config.launcher.container:
        return config.launcher.container.python
    return config.kubernetes.python or sys.executable


def beside_python(program: str) -> str:
    """Return the path of a program of this Python's environment, or its name."""
    return shutil.which(program, path=str(Path(sys.executable).parent)) or program


def additions(config: RunConfig, base: Mapping[str, str], marker: str, share: Share = ALONE) -> dict[str, str]:
    """Return the variables of a run in addition to the node's.

    Variables of NCCL and CUDA that the node's owner has set are not changed.
    """
    paths = [str(_PACKAGE_ROOT), *filter(None, [base.get("PYTHONPATH", "")])]
    added = {
        "OMP_NUM_THREADS": str(config.launcher.threads_per_rank),
        MARKER: marker,
        "PYTHONPATH": ":".join(paths),
        "PYTHONUNBUFFERED": "1",
    }
    if share.nodes == 1:
        # All ranks are on this machine, so gloo need not resolve the name of the machine.
        added["GLOO_SOCKET_IFNAME"] = base.get("GLOO_SOCKET_IFNAME", "lo")
    else:
        added |= share.to_environment()
        # For commands that start their ranks themselves; launchers set their own for each rank.
        added |= {"MASTER_ADDR": share.master_address, "MASTER_PORT": str(share.port)}
        added |= {"NNODES": str(share.nodes), "NODE_RANK": str(share.node_rank)}
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            interface = base.get(name, "") if config.cluster.interface is None else ""
            if interface := interface or share.interface:
                added[name] = interface
        if config.cluster.interface is not None:
            added["PRTE_MCA_prte_if_include"] = added["OMPI_MCA_oob_tcp_if_include"] = config.cluster.interface
    added |= config.starter.environment
    if not config.device.may_use_gpus:
        added |= config.starter.cpu_environment
    return added


def attempt_variables(config: RunConfig, attempt: int, saved_step: int | None = None) -> dict[str, str]:
    """Return what the ranks may know about their attempt.

    Its number, the signal that comes ahead of its limit, and the last step that an earlier attempt has saved.
    """
    warning = {"PARLAB_WARN_SIGNAL": config.launcher.warn_signal} if config.launcher.warn_before_s is not None else {}
    saved = {SAVED_STEP: str(saved_step)} if saved_step is not None and config.checkpoint.is_on else {}
    return {"PARLAB_ATTEMPT": str(attempt), **warning, **saved}


def hang_timeout_s(config: RunConfig) -> int | None:
    """Return the seconds without a step after which a run counts as hung; None if its engine reports no progress."""
    return config.launcher.hang_timeout_s if config.engine.reports_progress else None


def shell_line(argv: list[str], added: Mapping[str, str]) -> str:
    """Return a command as a line that starts the same run in a shell."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(added.items()) if name != MARKER]
    return " ".join([*assignments, shlex.join(argv)])
