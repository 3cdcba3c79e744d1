"""A configuration and a run's directory -> the command that trains and its environment. Pure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from runners.config import RunConfig
from runners.processes import MARKER

SECRETS = ("REDIS_URL", "PARLAB_NODE_KEY", "PARLAB_NODE_KEY_FILE", "CELERY_BROKER_URL")
"""What the daemon needs and a training must not see."""

STARTS_ITS_OWN = ("capacity", "command")
"""Engines that are one process, which starts others."""

WITHOUT_STEPS = ("capacity", "command")
"""Engines whose steps are not those of a training: no silence of theirs is a hang."""

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
    engine = ["-m", f"runners.engines.{config.parallel.engine}", "--config", str(config_path)]
    if config.launcher.kind == "plain" or config.parallel.engine in STARTS_ITS_OWN:
        return [sys.executable, *engine]
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        "--nnodes=1",
        f"--nproc-per-node={config.world_size}",
        "--standalone",
        # Without it the name of the machine is looked up, which hangs where it has no address.
        "--local-addr=127.0.0.1",
        *engine,
    ]


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
    return added


def hang_timeout_s(config: RunConfig) -> int | None:
    """Return for how long a run may make no step; None where nobody can tell a long step from a hang."""
    return None if config.parallel.engine in WITHOUT_STEPS else config.launcher.hang_timeout_s


def without_secrets(base: Mapping[str, str]) -> dict[str, str]:
    """Copy an environment without what only the daemon may know."""
    return {name: value for name, value in base.items() if name not in SECRETS}


def shell_line(argv: list[str], added: Mapping[str, str]) -> str:
    """Write a command so that a person can paste it into a shell and get the same run."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in sorted(added.items()) if name != MARKER]
    return " ".join([*assignments, shlex.join(argv)])
