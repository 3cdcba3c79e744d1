"""Rules of `launcher.container`."""

from __future__ import annotations

from collections.abc import Iterator

from .fields import RunFields
from .launchers import DEEPSPEED, SRUN
from .problems import Problem

FIELD = "launcher.container"


def container_problems(config: RunFields) -> Iterator[Problem]:
    """Check what cannot be combined with a container."""
    container = config.launcher.container
    if container is None:
        return
    if config.network.apply != "none":
        message = "links cannot be shaped for ranks in a container; use none, or leave launcher.container empty"
        yield Problem("network.apply", config.network.apply, message)
    if config.starter is SRUN:
        message = "srun starts ranks outside of the container; use torchrun, deepspeed, mpirun or plain"
        yield Problem("launcher.kind", SRUN.name, message)
    elif config.cluster.nodes > 1 and config.starter.spans_by_itself:
        kind = config.starter.name
        message = f"{kind} cannot start ranks in the containers of other nodes; use torchrun or deepspeed, or one node"
        yield Problem("launcher.kind", kind, message)
    if container.workdir is not None and not config.engine.is_external:
        message = (
            f"engine {config.engine.name} works in the directory of the run; leave it empty, or use engine command"
        )
        yield Problem(f"{FIELD}.workdir", container.workdir, message)
    elif container.workdir is not None and config.starter is DEEPSPEED and config.cluster.nodes > 1:
        message = "over several nodes deepspeed reads a file in the directory of the run; leave it empty"
        yield Problem(f"{FIELD}.workdir", container.workdir, message)
    targets = [mount.split(":")[1].rstrip("/") for mount in container.mounts]
    for target in sorted({target for target in targets if targets.count(target) > 1}):
        message = f"two mounts have the target {target}; use each target once"
        yield Problem(f"{FIELD}.mounts", target, message)
