"""From a configuration and a run directory to the command of the run and its environment."""

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
"""Variables that the daemon needs and a run must not see."""

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
    """Build the argv that starts the ranks, without emulated links; raises ValueError as `command` does."""
    if config.cluster.nodes != 1:
        raise ValueError(
            f"cluster.nodes {config.cluster.nodes}: a run can start on one machine only; use 1 and more gpus_per_node,"
            " or network.apply emulate"
        )
    engine = [sys.executable, "-m", config.engine.module, "--config", str(config_path)]
    if not config.starter.starts_ranks or config.engine.starts_its_own_ranks:
        return engine
    if config.starter.needs_port:
        return [sys.executable, "-m", "runners.ports", *launcher(config), *engine]
    return [*launcher(config), *engine[1:]]


def launcher(config: RunConfig, port: str = PLACEHOLDER) -> list[str]:
    """Return the arguments that, before a command, start it once per rank on this machine; none for one process.

    A launcher that is a module must be followed by a script or -m, one that is a program by a program. The latter
    needs runners.ports in front of it, or a free port.
    """
    row = config.starter
    options = [option.format(ranks=config.world_size, port=port) for option in row.options]
    if row.module:
        return [sys.executable, "-m", row.module, *options]
    if not row.program:
        return []
    program = shutil.which(row.program, path=str(Path(sys.executable).parent)) or row.program
    return [program, *options, sys.executable, "-m", "runners.ranks"]


def additions(config: RunConfig, base: Mapping[str, str], marker: str) -> dict[str, str]:
    """Return the variables of a run in addition to the node's; variables of NCCL and CUDA are not changed."""
    paths = [str(_PACKAGE_ROOT), *filter(None, [base.get("PYTHONPATH", "")])]
    added = {
        "OMP_NUM_THREADS": str(config.launcher.threads_per_rank),
        MARKER: marker,
        "PYTHONPATH": ":".join(paths),
        "PYTHONUNBUFFERED": "1",
    }
    # All ranks are on this machine, so gloo need not resolve the name of the machine.
    added["GLOO_SOCKET_IFNAME"] = base.get("GLOO_SOCKET_IFNAME", "lo")
    added |= config.starter.environment
    if not config.device.may_use_gpus:
        added |= config.starter.cpu_environment
    return added


def hang_timeout_s(config: RunConfig) -> int | None:
    """Return the seconds without a step after which a run counts as hung; None if its engine reports no progress."""
    return config.launcher.hang_timeout_s if config.engine.reports_progress else None


def without_secrets(base: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the secrets of the daemon."""
    return {name: value for name, value in base.items() if name not in SECRETS}


def shell_line(argv: list[str], added: Mapping[str, str]) -> str:
    """Return a command as a line that starts the same run in a shell."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(added.items()) if name != MARKER]
    return " ".join([*assignments, shlex.join(argv)])
