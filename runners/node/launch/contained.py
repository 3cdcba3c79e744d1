"""Start a command in the container of a run: `python -m runners.node.launch.contained --config FILE -- COMMAND`.

It runs on the node that has the container, checks what that node must have, and replaces itself by the runtime. What
is missing is reported as a refusal with field, value and remedy, before any rank has started.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from runners.config import ConfigError, Problem, RunConfig
from runners.config.container_rules import FIELD
from runners.config.sections import ContainerSetting
from runners.engines.process import starting
from runners.node.launch.containers import (
    RUNTIMES,
    SHARED,
    Place,
    Runtime,
    client_environment,
    container_argv,
    container_name,
    passed_variables,
    program_of,
)
from runners.supervisor.processes import MARKER

CHECK_S = 60.0
"""Time for a runtime to say whether it has an image."""
PULL_S = 24 * 3600.0


def check_node(container: ContainerSetting, environment: Mapping[str, str]) -> None:
    """Raise ConfigError if this node cannot start the container: runtime, image and mounts, in this order."""
    row = RUNTIMES[container.runtime]
    if program_of(row) is None:
        others = ", ".join(name for name, other in RUNTIMES.items() if not other.needs_slurm and program_of(other))
        remedy = f"install it, or use {others}" if others else "install it, or leave launcher.container empty"
        raise _problem("runtime", row.name, f"{row.program} is not installed on this node; {remedy}")
    if row.needs_slurm and "SLURM_JOB_ID" not in environment:
        message = "pyxis starts containers only in a job of Slurm; use a pool whose daemon runs with --slurm, or enroot"
        raise _problem("runtime", row.name, message)
    for mount in container.mounts:
        source = mount.partition(":")[0]
        if not os.path.exists(source):
            raise _problem("mounts", mount, f"{source} does not exist on this node; create it, or correct the mount")
    _check_image(row, container.image)


def _check_image(row: Runtime, image: str) -> None:
    is_path = image.startswith("/")
    if is_path:
        is_there = os.path.isdir(image) if row.root_directory else os.path.exists(image)
        if is_there:
            return
        kind = "root directory" if row.root_directory else "file"
        remedy = f"use the path of a {kind}, or the name of an image of {row.name}"
        raise _problem("image", image, f"{image} does not exist on this node; {remedy}")
    if not row.exists or "{image}" not in "".join(row.exists):
        _check_listed(row, image)
        return
    if _fails(row, row.exists, image, CHECK_S) and (why := _fails(row, row.pull, image, PULL_S)):
        remedy = f"check its name, and that this node may fetch it: {row.name} pull {image}"
        raise _problem("image", image, f"{image} is not on this node and cannot be fetched ({why}); {remedy}")


def _check_listed(row: Runtime, image: str) -> None:
    """Check an image against those that a runtime lists; without a list it is left to the runtime."""
    if not row.exists:
        return
    done = subprocess.run([row.program, *row.exists], check=False, capture_output=True, text=True, timeout=CHECK_S)
    if image not in done.stdout.split():
        message = f"{row.name} has no container {image} on this node; create it, or use the path of an image"
        raise _problem("image", image, message)


def _fails(row: Runtime, command: Sequence[str], image: str, within_s: float) -> str:
    """Run a command about an image; return why it fails, in one line; empty if it does not."""
    argv = [row.program, *[argument.format(image=image) for argument in command]]
    try:
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=within_s, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"{shlex.join(argv)} did not end within {within_s:g} s"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1][-200:] if done.returncode else ""


def _problem(field: str, value: str, message: str) -> ConfigError:
    return ConfigError([Problem(f"{FIELD}.{field}", value, message)])


def place_here(config: RunConfig, directory: str, environment: Mapping[str, str]) -> Place:
    """Return where the container of a run is started on this node."""
    return Place(
        container_name(environment.get(MARKER) or f"by-hand-{os.getpid()}"),
        directory,
        os.getuid(),
        os.getgid(),
        environment.get("SLURMD_NODENAME", ""),
        has_gpus=config.device.may_use_gpus and os.path.exists("/dev/nvidiactl"),
        has_rdma=os.path.isdir("/dev/infiniband"),
        memory_limit_mib=config.launcher.memory_limit_mib,
        shared=tuple(path for name in SHARED if os.path.isdir(path := environment.get(name, ""))),
    )


def start(config: RunConfig, directory: str, command: Sequence[str]) -> NoReturn:
    """Check the node, and replace this process by a command in the container of a run; raises ConfigError."""
    container = config.launcher.container
    assert container is not None
    check_node(container, os.environ)
    place = place_here(config, directory, os.environ)
    argv = container_argv(container, command, place, passed_variables(os.environ))
    sys.stdout.write(f"parlab: {shlex.join(argv)}\n")
    sys.stdout.flush()
    os.environ |= client_environment(container)
    os.execvp(argv[0], argv)


def main() -> int:
    """Run from the command line; return the exit code if the container was not started."""
    split = sys.argv.index("--")
    parser = argparse.ArgumentParser(prog="python -m runners.node.launch.contained", allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True, help="a RunConfig as JSON")
    path = parser.parse_args(sys.argv[1:split]).config.resolve()
    try:
        start(starting.config_at(parser, path), str(path.parent), sys.argv[split + 1 :])
    except ConfigError as error:
        return starting.refuse(error, 0)
    except OSError as error:
        sys.stderr.write(f"{FIELD}: the runtime cannot be started: {error.strerror}; check the node\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
