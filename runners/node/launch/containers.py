"""The container runtimes, one row each: how one starts the launcher of a run in a container, and ends what is left.

All rows share the network and the shared memory of the node with the container: ranks meet as without one, and the
supervisor sees, measures and signals each of them.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # the supervisor needs no configuration
    from runners.config.sections import ContainerSetting, LauncherSection

PACKAGE_ROOT = Path(__file__).resolve().parents[3]
CODE = "/parlab"
"""Where a container has parlab's code, without the other packages of the node."""
PASSED = re.compile(r"(?:PARLAB|NCCL|CUDA|TORCH|OMP|GLOO|UCX|SLURM|OMPI|PRTE|NVIDIA|HSA|ROCR|HIP|DS|MASTER)_\w+")
"""Variables of the node that a container gets beside those of the run, where a runtime passes on only what it is told
to."""
_NOT_STARTED = frozenset((125, 126, 127))
"""Exit codes with which Docker and Podman say that they could not start a container, or its command."""
_OF_IMAGE = re.compile(
    r"(?!.*(?:executable|unrecognized)).*(?:image|manifest|registry|unauthorized|denied|URL|no such file|docker://)",
    re.IGNORECASE,
)
"""What is said of an image, and not of mounts, devices or the command."""
REMOVE_S = 20.0
"""Time for a runtime to remove a container."""
SHARED = ("PARLAB_CHECKPOINT_DIR",)
"""Variables with directories outside of that of the run that its ranks write to."""
ALWAYS_PASSED = ("PYTHONUNBUFFERED", "NNODES", "NODE_RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK")
NOT_PASSED = re.compile(r"PARLAB_(?:NODE_KEY\w*|STATE_DIR|ALLOWED_COMMANDS)")
_DOCKER = (
    "--rm",
    "--name={name}",
    "--network=host",
    "--ipc=host",
    "--uts=host",
    "--pull=never",
    "--security-opt=label=disable",
    "--entrypoint=",
    "--workdir={workdir}",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Runtime:
    name: str
    """Value of `launcher.container.runtime`."""
    program: str
    start: tuple[str, ...]
    """Its arguments; {name}, {workdir}, {uid}, {gid}, {node} and {image} are replaced."""
    mount: str
    """Argument of one mount with {source} and {target}; of all of them where `joined_mounts` is set."""
    read_only: tuple[str, str]
    """What {mode} of a mount is: writable, read-only."""
    joined_mounts: str = ""
    """Argument of all mounts; empty: each has an argument of its own."""
    passed: str = ""
    """Argument that passes on the variable {variable}; {variables} are all of them. Empty: all are inherited."""
    set: str = ""
    """Argument that sets {variable} to {value}; empty: it is set in the environment of the program."""
    set_prefix: str = ""
    """Before the name of a variable there."""
    gpus: tuple[str, ...] = ()
    """Arguments for a run on a node with GPUs."""
    rdma: tuple[str, ...] = ()
    """Arguments for a node with RDMA devices."""
    memory_limit: str = ""
    """Argument that limits the private memory of a process to {bytes}; empty: the limit is inherited."""
    own_limits: tuple[str, ...] = ()
    """Limits of the node (`ulimit`) that it would otherwise raise, which not every machine permits."""
    image: tuple[str, ...] = ("{image}",)
    """Arguments that name the image."""
    root_directory: tuple[str, ...] = ()
    """The same for a root directory; empty: only images."""
    before: tuple[str, ...] = ()
    """Arguments between the image and the command."""
    exists: tuple[str, ...] = ()
    """Command that fails if {image} is not on the node; empty: the path of a file is looked at."""
    pull: tuple[str, ...] = ()
    """Command that fetches {image}."""
    remove: tuple[str, ...] = ()
    """Command that ends and removes the container {name}; empty: it ends with its processes."""
    failure: str = ""
    """Regular expression of a line with which it says why it could not start a container."""
    failure_codes: frozenset[int] = frozenset()
    """Exit codes that say so; empty: any."""
    helpers: frozenset[str] = frozenset()
    """Programs of the runtime beside those of the container, by the names that the kernel shows."""
    is_apart: bool = False
    """Its processes are no descendants of the program that starts them."""
    needs_slurm: bool = False
    """Only within a job of Slurm."""
    may_run_as: bool = False
    """It gives its processes no rights beyond those of the account that starts it, and needs no others."""


PYXIS = Runtime(
    name="pyxis",
    program="srun",
    start=(
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        "--nodelist={node}",
        "--cpu-bind=none",
        "--input=none",
        "--kill-on-bad-exit=1",
        "--no-container-mount-home",
        "--no-container-entrypoint",
        "--container-workdir={workdir}",
    ),
    mount="{source}:{target}{mode}",
    read_only=("", ":ro"),
    joined_mounts="--container-mounts={mounts}",
    passed="--container-env={variables}",
    image=("--container-image={image}",),
    failure=r"error: pyxis: +(.+)|^srun: (unrecognized option '--(?:no-)?container.*)",
    helpers=frozenset(("srun",)),
    is_apart=True,
    needs_slurm=True,
)
ENROOT = Runtime(
    name="enroot",
    program="enroot",
    start=("start", "--rw"),
    mount="--mount={source}:{target}:none:{mode}",
    read_only=("x-create=auto,rbind,rw", "x-create=auto,rbind,ro"),
    passed="--env={variable}",
    set="--env={variable}={value}",
    # enroot has no option for the working directory.
    before=("sh", "-c", 'cd "$0" && exec "$@"', "{workdir}"),
    exists=("list",),
    failure=r"^(\[ERROR\] .+|enroot-\w+: .+)",
    helpers=frozenset(("enroot", "enroot-nsenter", "fuse-overlayfs", "squashfuse")),
    may_run_as=True,
)
APPTAINER = Runtime(
    name="apptainer",
    program="apptainer",
    start=("exec", "--no-home", "--writable-tmpfs", "--pwd={workdir}"),
    mount="--bind={source}:{target}{mode}",
    read_only=("", ":ro"),
    set_prefix="APPTAINERENV_",
    gpus=("--nv",),
    failure=r"^FATAL: +(.+)",
    helpers=frozenset(("apptainer", "starter", "starter-suid", "squashfuse_ll", "fuse-overlayfs")),
    may_run_as=True,
)
DOCKER = Runtime(
    name="docker",
    program="docker",
    start=("run", *_DOCKER, "--pid=host", "--user={uid}:{gid}"),
    mount="--volume={source}:{target}{mode}",
    read_only=("", ":ro"),
    passed="--env={variable}",
    set="--env={variable}={value}",
    gpus=("--gpus=all",),
    rdma=("--device=/dev/infiniband", "--ulimit=memlock=-1"),
    memory_limit="--ulimit=data={bytes}:{bytes}",
    exists=("image", "inspect", "--format={{{{.Id}}}}", "{image}"),
    pull=("pull", "--quiet", "{image}"),
    remove=("rm", "--force", "{name}"),
    failure=r"^docker: (.+)",
    failure_codes=_NOT_STARTED,
    helpers=frozenset(("docker",)),
    is_apart=True,
)
PODMAN = Runtime(
    name="podman",
    program="podman",
    # Without a cgroup of its own the container stays in that of the daemon or of the job. Its root is the account
    # that starts it.
    start=("run", *_DOCKER, "--user=0:0", "--cgroups=disabled", "--log-driver=passthrough"),
    mount="--volume={source}:{target}{mode}",
    read_only=("", ":ro"),
    passed="--env={variable}",
    set="--env={variable}={value}",
    gpus=("--device=nvidia.com/gpu=all",),
    rdma=("--device=/dev/infiniband",),
    memory_limit="--ulimit=data={bytes}:{bytes}",
    own_limits=("nofile", "nproc", "memlock"),
    # Podman gives a container without a cgroup process ids of its own: number 1 would ignore signals that it does not
    # handle, so a shell has it.
    before=("sh", "-c", '"$@"; exit $?', "sh"),
    root_directory=("--rootfs", "{image}"),
    exists=("image", "exists", "{image}"),
    pull=("pull", "--quiet", "{image}"),
    remove=("rm", "--force", "--ignore", "--time=0", "{name}"),
    failure=r"^Error: (.+)",
    failure_codes=_NOT_STARTED,
    helpers=frozenset(("podman", "conmon", "crun", "runc", "catatonit", "fuse-overlayfs")),
)
RUNTIMES = {row.name: row for row in (PYXIS, ENROOT, APPTAINER, DOCKER, PODMAN)}
"""Name -> runtime, in the order of `runners.config.sections.Runtime`."""


def program_of(row: Runtime) -> str | None:
    """Return the path of a runtime's program on this node."""
    return shutil.which(row.program)


class Place(NamedTuple):
    """Where a container is started, and what the node has."""

    name: str
    """Of the container; unique on the node."""
    directory: str
    """Of the run: it is mounted, and the default working directory."""
    uid: int = 0
    gid: int = 0
    node: str = ""
    """Name of the node for Slurm."""
    has_gpus: bool = False
    has_rdma: bool = False
    memory_limit_mib: int | None = None
    shared: tuple[str, ...] = ()
    """Further directories of the run, mounted at their own paths: that of its checkpoints."""


def container_name(marker: str) -> str:
    """Return the name of the container of a run from the marker of its processes."""
    return "parlab-" + re.sub(r"[^A-Za-z0-9_.-]", "-", marker)


def passed_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that the processes in a container get from the node."""
    names = {name for name in environment if PASSED.fullmatch(name) and not NOT_PASSED.fullmatch(name)}
    return sorted(names | (set(ALWAYS_PASSED) & set(environment)))


def container_argv(
    container: ContainerSetting, command: Sequence[str], place: Place, variables: Sequence[str]
) -> list[str]:
    """Return the command line that runs a command in the container of a run; `variables` are passed on."""
    row = RUNTIMES[container.runtime]
    values = place._asdict() | {"workdir": container.workdir or place.directory, "image": container.image}
    named = row.root_directory if row.root_directory and container.image.startswith("/") else row.image
    options = [*row.start, *row.gpus * place.has_gpus, *row.rdma * place.has_rdma]
    if row.memory_limit and place.memory_limit_mib:
        options.append(row.memory_limit.replace("{bytes}", str(place.memory_limit_mib << 20)))
    options += [f"--ulimit={name}={limit}:{limit}" for name in row.own_limits for limit in [_hard_limit(name)]]
    return [
        row.program,
        *[option.format(**values) for option in options],
        *_mounts(row, container, place),
        *_variables(row, container, variables),
        *[argument.format(**values) for argument in (*named, *row.before)],
        *command,
    ]


def _hard_limit(name: str) -> int:
    """Return a limit of this process, -1 for none; of processes not more than the kernel has."""
    limit = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
    if name != "nproc":
        return limit
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    return most if limit == resource.RLIM_INFINITY else min(limit, most)


def on_node(container: ContainerSetting | None, path: Path) -> Path:
    """Return where the node has a directory that the ranks see: a mount may come from elsewhere."""
    for mount in container.mounts if container else ():
        source, target, *_ = mount.split(":")
        if path.is_relative_to(target):
            return Path(source, path.relative_to(target))
    return path


def client_environment(container: ContainerSetting) -> dict[str, str]:
    """Return what the environment of the runtime's program must have beside that of the run."""
    row = RUNTIMES[container.runtime]
    return {} if row.set else {f"{row.set_prefix}{name}": value for name, value in _own(container).items()}


def _own(container: ContainerSetting) -> dict[str, str]:
    """Return the variables that only the container has."""
    own = container.environment
    return own | {"PYTHONPATH": ":".join([CODE, *filter(None, [own.get("PYTHONPATH", "")])])}


def inherited_memory_limit(launcher: LauncherSection) -> int | None:
    """Return the memory limit (MiB) of the launched program; None where the runtime sets it for the container alone."""
    if launcher.container and RUNTIMES[launcher.container.runtime].memory_limit:
        return None
    return launcher.memory_limit_mib


def exit_code_of(runtime: str | None, code: int) -> int:
    """Return the exit code of the command in a container, negative for a signal as without one."""
    return 128 - code if runtime and 128 < code < 128 + 65 else code


def start_failure(runtime: str, image: str, code: int, output: str) -> str:
    """Return why a runtime could not start a container, with field, value and remedy; empty if it does not say so."""
    row = RUNTIMES[runtime]
    matches = filter(None, (re.search(row.failure, line) for line in output.splitlines()))
    said = [next(filter(None, match.groups())).strip() for match in matches]
    if not said or (row.failure_codes and code not in row.failure_codes):
        return ""
    why = next((line for line in said if "[ERROR]" in line), said[-1])
    text = f"{row.name} could not start the container: {why}"
    if _OF_IMAGE.match(why):
        return f"launcher.container.image {image}: {text}; check its name, and that this node may fetch it"
    return f"launcher.container {row.name} {image}: {text}; correct the setting, or check the runtime on this node"


def remove(runtime: str, marker: str) -> str:
    """End and remove the container of a run, if there is one; return why that is not possible, empty if it is."""
    row = RUNTIMES[runtime]
    if not row.remove or program_of(row) is None:
        return ""
    argv = [row.program, *[argument.format(name=container_name(marker)) for argument in row.remove]]
    try:
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=REMOVE_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    is_gone = done.returncode == 0 or "no such container" in done.stderr.lower()
    return "" if is_gone else done.stderr.strip()[-300:]


def _mounts(row: Runtime, container: ContainerSetting, place: Place) -> list[str]:
    """Return the arguments of the mounts: those of the setting, the run's own directory, and parlab's code."""
    code = [(str(PACKAGE_ROOT / name), f"{CODE}/{name}", True) for name in ("parlab", "runners")]
    own = dict.fromkeys((place.directory, *place.shared))
    mounts = [*((path, path, False) for path in own), *code]
    for mount in container.mounts:
        source, target, *mode = mount.split(":")
        mounts.append((source, target, bool(mode)))
    arguments = [
        row.mount.format(source=source, target=target, mode=row.read_only[is_read_only])
        for source, target, is_read_only in mounts
    ]
    return [row.joined_mounts.format(mounts=",".join(arguments))] if row.joined_mounts else arguments


def _variables(row: Runtime, container: ContainerSetting, variables: Sequence[str]) -> list[str]:
    own = _own(container)
    names = [name for name in variables if name not in own]
    if "{variables}" in row.passed:
        return [row.passed.format(variables=",".join([*names, *own]))]
    passed = [row.passed.format(variable=name) for name in names] if row.passed else []
    return passed + ([row.set.format(variable=name, value=value) for name, value in own.items()] if row.set else [])
