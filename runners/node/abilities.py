"""What this node can run: engines, launchers, commands, software and addresses, as heartbeats report them."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from runners.config import ENGINES, RunConfig
from runners.config.launchers import LAUNCHERS
from runners.node.addresses import local_addresses
from runners.node.launch.containers import RUNTIMES, program_of
from runners.telemetry import telemetry
from runners.telemetry.conditions import nccl_version
from runners.wire.protocol import Abilities, NodeAddress, NodeKind

ALLOWED_COMMANDS = "PARLAB_ALLOWED_COMMANDS"
"""Environment variable of the daemon with the path of the list of allowed commands."""


class Allowed(NamedTuple):
    """What the owner of the node allows; None: everything that is installed."""

    engines: tuple[str, ...] | None = None
    launchers: tuple[str, ...] | None = None
    interfaces: tuple[str, ...] = ()
    """Network interfaces that runs may shape; none unless the owner names them."""
    images: tuple[str, ...] = ()
    """Beginnings of the images that runs may use; none unless the owner names them."""
    mounts: tuple[str, ...] = ()
    """Directories that containers may see, beside those of the run."""

    def check(self, config: RunConfig) -> None:
        """Raise ValueError if a run uses what is not allowed here."""
        shaped = config.network.interface
        if config.network.apply == "interface" and shaped not in self.interfaces:
            choice = f"allows {', '.join(self.interfaces)}" if self.interfaces else "allows none"
            raise ValueError(
                f"network.interface {shaped} may not be shaped on this node, whose owner {choice};"
                f" start its daemon with --shape {shaped}, or use network.apply none"
            )
        self._check_container(config)
        for field, name, allowed in (
            ("parallel.engine", config.engine.name, self.engines),
            ("launcher.kind", config.starter.name, self.launchers),
        ):
            if allowed is not None and name not in allowed:
                raise ValueError(f"{field} {name} is not allowed on this node; use {', '.join(allowed)}")

    def _check_container(self, config: RunConfig) -> None:
        container = config.launcher.container
        if container is None:
            return
        if not container.image.startswith(self.images):
            choice = f"images that begin with {', '.join(self.images)}" if self.images else "no containers"
            raise ValueError(
                f"launcher.container.image {container.image} is not allowed on this node, whose owner allows {choice};"
                " start its daemon with --images, or use another image"
            )
        for mount in container.mounts:
            source = os.path.realpath(mount.partition(":")[0])
            if not any(Path(source).is_relative_to(allowed) for allowed in self.mounts):
                choice = ", ".join(self.mounts) or "none"
                raise ValueError(
                    f"launcher.container.mounts {mount} is not allowed on this node, whose owner allows {choice};"
                    " start its daemon with --mounts, or leave it out"
                )


def read_names(text: str, option: str, names: Iterable[str]) -> tuple[str, ...] | None:
    """Read a list like pipeline,megatron; raises ValueError for an unknown name. Empty: None."""
    if not text:
        return None
    chosen = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in chosen:
        if name not in names:
            raise ValueError(f"{option} {name} does not exist; use names of {', '.join(names)}, separated by commas")
    return chosen


def abilities(
    allowed: Allowed, own_address: str, environment: Mapping[str, str], *, kind: NodeKind = "daemon"
) -> Abilities:
    """Describe what this node can run."""
    launchers = [name for name, row in LAUNCHERS.items() if not row.program or _program(row.program)]
    commands = allowed_commands(environment)
    # The packages of pods are those of their image.
    installed = list(ENGINES) if kind == "kubernetes" else _installed()
    engines = [name for name in installed if commands or not ENGINES[name].is_external]
    return Abilities(
        engines=[name for name in engines if allowed.engines is None or name in allowed.engines],
        launchers=[name for name in launchers if allowed.launchers is None or name in allowed.launchers],
        commands=commands,
        software=_software(),
        addresses=_addresses(own_address),
        interfaces=list(allowed.interfaces),
        containers=_runtimes(kind) if allowed.images else [],
        images=list(allowed.images),
        kind=kind,
        own_queue=True,
    )


def _runtimes(kind: str) -> list[str]:
    if kind == "kubernetes":
        return []  # a pod is a container
    return [name for name, row in RUNTIMES.items() if (kind == "slurm" or not row.needs_slurm) and program_of(row)]


@functools.cache
def _installed() -> list[str]:
    """List the engines whose packages this node has."""
    return [name for name, row in ENGINES.items() if all(map(importlib.util.find_spec, row.requires))]


def _program(name: str) -> str | None:
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


@functools.cache
def _software() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in telemetry.PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    # A new kernel or NCCL is a reason to measure again, as is a new driver.
    own = {"nccl": nccl_version(), "kernel": platform.release()}
    return versions | {name: version for name, version in own.items() if version}


def _addresses(own: str) -> list[NodeAddress]:
    """List the addresses of this machine, the one that the daemon was given or chose first."""
    local = local_addresses()
    matches = [entry for entry in local if entry.address == own]
    first = matches or [NodeAddress(interface="", address=own, prefix=128 if ":" in own else 32)]
    return [*first, *(entry for entry in local if entry.address != own)]


def allowed_commands(environment: Mapping[str, str]) -> list[list[str]]:
    """Return the beginnings of the commands that this node allows; none if the list is missing or invalid."""
    path = environment.get(ALLOWED_COMMANDS, "")
    try:
        content: Any = json.loads(Path(path).read_text()) if path else []
    except (OSError, ValueError):
        return []
    return content if is_command_list(content) else []


def is_command_list(content: Any) -> bool:
    """Return whether a value is a list of argument lists that begin with an absolute path."""
    return isinstance(content, list) and all(
        isinstance(prefix, list)
        and bool(prefix)
        and all(isinstance(argument, str) for argument in prefix)
        and os.path.isabs(prefix[0])
        for prefix in content
    )
