"""Runs in a container: the command line of each runtime, what is refused before any rank starts, and real podman."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from runners.config import ConfigError, RunConfig, check
from runners.config.sections import Runtime
from runners.node.abilities import Allowed, abilities
from runners.node.launch import containers
from runners.node.launch.contained import check_node, place_here
from runners.node.launch.launch import command
from runners.supervisor import processes
from runners.supervisor.processes import MARKER
from runners.telemetry import telemetry
from tests.conftest import SMALL
from tests.patience import wait_for
from tests.runners.conftest import ROOT, NodeMachine, Server
from tests.runners.supervised import Prepare, Supervise, Supervised, supervise

__all__ = ["supervise"]

PLACE = containers.Place("parlab-a-1-1", "/runs/1-1", 5, 6, "n1", has_gpus=True, has_rdma=True, memory_limit_mib=100)
CODE = [(f"{ROOT}/{name}", f"/parlab/{name}") for name in ("parlab", "runners")]


def configured(runtime: str, image: str = "img:1", *, launcher: Any = None, **container: Any) -> RunConfig:
    own = {"runtime": runtime, "image": image, **container}
    return RunConfig.model_validate({**SMALL, "launcher": {**(launcher or {}), "container": own}})


def argv_of(runtime: str, image: str = "img:1") -> list[str]:
    container = configured(runtime, image, mounts=["/data:/d:ro"], environment={"A": "b c"}).launcher.container
    assert container is not None
    return containers.container_argv(container, ["python3", "x.py"], PLACE, ["NCCL_DEBUG"])


# --- the command lines -----------------------------------------------------------------------------------------------


def test_every_runtime_of_the_configuration_has_a_row() -> None:
    assert list(containers.RUNTIMES) == list(get_args(Runtime))


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_docker_and_podman_share_the_node_with_the_container(runtime: str) -> None:
    argv = argv_of(runtime)
    assert argv[:2] == [runtime, "run"]
    assert {"--network=host", "--uts=host", "--ipc=host", "--rm", "--name=parlab-a-1-1"} < set(argv)
    assert [f"--volume={source}:{target}:ro" for source, target in CODE] == [
        word for word in argv if word.endswith(":ro") and "/parlab/" in word
    ]
    assert {"--volume=/runs/1-1:/runs/1-1", "--volume=/data:/d:ro", "--workdir=/runs/1-1"} < set(argv)
    assert {"--env=NCCL_DEBUG", "--env=A=b c", "--env=PYTHONPATH=/parlab"} < set(argv)
    assert {"--device=/dev/infiniband", "--ulimit=data=104857600:104857600"} < set(argv)
    assert "img:1" in argv
    assert argv[-2:] == ["python3", "x.py"]


def test_docker_runs_as_the_account_of_the_daemon_and_podman_as_its_own_root() -> None:
    assert {"--user=5:6", "--gpus=all"} < set(argv_of("docker"))
    assert {"--user=0:0", "--cgroups=disabled", "--device=nvidia.com/gpu=all"} < set(argv_of("podman"))
    assert any(word.startswith("--ulimit=nofile=") for word in argv_of("podman"))


def test_podman_takes_a_root_directory_in_place_of_an_image() -> None:
    assert argv_of("podman", "/images/torch")[-8:-4] == ["--rootfs", "/images/torch", "sh", "-c"]


def test_apptainer_inherits_the_environment_and_gets_more_by_its_prefix() -> None:
    argv = argv_of("apptainer", "/images/torch.sif")
    assert argv[:2] == ["apptainer", "exec"]
    assert {"--nv", "--bind=/data:/d:ro", "--bind=/runs/1-1:/runs/1-1", "--pwd=/runs/1-1"} < set(argv)
    assert argv[-3:] == ["/images/torch.sif", "python3", "x.py"]
    container = configured("apptainer", environment={"A": "b", "PYTHONPATH": "/own"}).launcher.container
    assert container is not None
    assert containers.client_environment(container) == {
        "APPTAINERENV_A": "b",
        "APPTAINERENV_PYTHONPATH": "/parlab:/own",
    }


def test_enroot_enters_the_working_directory_by_a_shell() -> None:
    argv = argv_of("enroot", "/images/torch.sqsh")
    assert argv[:3] == ["enroot", "start", "--rw"]
    assert "--mount=/data:/d:none:x-create=auto,rbind,ro" in argv
    assert argv[-7:] == ["/images/torch.sqsh", "sh", "-c", 'cd "$0" && exec "$@"', "/runs/1-1", "python3", "x.py"]


def test_pyxis_is_a_step_of_the_job_on_the_own_node() -> None:
    argv = argv_of("pyxis")
    assert argv[0] == "srun"
    assert {"--overlap", "--nodelist=n1", "--container-image=img:1", "--container-workdir=/runs/1-1"} < set(argv)
    mounts = ["/runs/1-1:/runs/1-1", *[f"{source}:{target}:ro" for source, target in CODE], "/data:/d:ro"]
    assert f"--container-mounts={','.join(mounts)}" in argv
    assert "--container-env=NCCL_DEBUG,A,PYTHONPATH" in argv


def test_the_launcher_is_that_of_the_image_and_engine_command_starts_the_container_itself() -> None:
    argv = command(configured("podman", python="/opt/bin/python"), Path("/runs/1-1/config.json"))
    own, launched = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    assert own == [sys.executable, "-m", "runners.node.launch.contained", "--config", "/runs/1-1/config.json"]
    assert launched[:3] == ["/opt/bin/python", "-m", "torch.distributed.run"]
    assert launched[-4:] == ["-m", "runners.engines.pipeline", "--config", "/runs/1-1/config.json"]
    external = RunConfig.model_validate(
        {
            "parallel": {"engine": "command"},
            "command": {"argv": ["/opt/train.py"]},
            "launcher": {"container": {"runtime": "podman", "image": "img"}},
        }
    )
    assert command(external, Path("c.json")) == [sys.executable, "-m", "runners.engines.command", "--config", "c.json"]


def test_the_directory_of_checkpoints_is_mounted_where_the_ranks_look_for_it(tmp_path: Path) -> None:
    config = configured("podman")
    place = place_here(config, "/runs/1-1", {"PARLAB_CHECKPOINT_DIR": str(tmp_path), MARKER: "a:1/1"})
    container = config.launcher.container
    assert container is not None
    assert f"--volume={tmp_path}:{tmp_path}" in containers.container_argv(container, ["x"], place, [])
    assert place_here(config, "/runs/1-1", {"PARLAB_CHECKPOINT_DIR": "/no/such"}).shared == ()


def test_a_folder_below_a_mount_is_where_the_mount_comes_from() -> None:
    container = configured("podman", mounts=["/lustre/team:/ckpt", "/data:/data:ro"]).launcher.container
    assert containers.on_node(container, Path("/ckpt/run-7")) == Path("/lustre/team/run-7")
    assert containers.on_node(container, Path("/ckpts/run-7")) == Path("/ckpts/run-7")
    assert containers.on_node(None, Path("/ckpt/run-7")) == Path("/ckpt/run-7")


def test_secrets_of_the_node_do_not_reach_a_container() -> None:
    node = {"PARLAB_RUN": "a:1/1", "NCCL_DEBUG": "INFO", "PARLAB_NODE_KEY": "x", "HOME": "/root", "REDIS_URL": "redis:"}
    assert containers.passed_variables(node) == ["NCCL_DEBUG", "PARLAB_RUN"]


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        (
            {"network": {"apply": "emulate", "delay_ms": 1}},
            "network.apply",
            "cannot be shaped for ranks in a container",
        ),
        ({"launcher": {"kind": "srun"}}, "launcher.kind", "srun starts ranks outside of the container"),
        ({"cluster": {"nodes": 2}, "launcher": {"kind": "mpirun"}}, "launcher.kind", "use torchrun or deepspeed"),
        ({"container": {"workdir": "/x"}}, "launcher.container.workdir", "works in the directory of the run"),
        ({"container": {"mounts": ["/a:/b", "/c:/b/"]}}, "launcher.container.mounts", "two mounts have the target /b"),
        ({"container": {"mounts": ["/a"]}}, "launcher.container.mounts.0", "must be SOURCE:TARGET"),
        ({"container": {"image": "--privileged"}}, "launcher.container.image", "invalid value"),
        ({"container": {"mount": []}}, "launcher.container.mount", "did you mean launcher.container.mounts?"),
    ],
)
def test_what_does_not_go_with_a_container_is_refused(changes: dict[str, Any], field: str, message: str) -> None:
    container = {"runtime": "podman", "image": "img", **changes.pop("container", {})}
    launcher = {**changes.pop("launcher", {}), "container": container}
    _, problems = check({**SMALL, **changes, "launcher": launcher})
    assert [(problem.field, message in problem.message) for problem in problems] == [(field, True)]


Programs = Callable[..., Path]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Put shell scripts on the PATH in place of all programs of the node."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))

    def put(**scripts: str) -> Path:
        for name, script in scripts.items():
            path = directory / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        return directory

    return put


def refusal(config: RunConfig) -> tuple[str, Any, str]:
    assert config.launcher.container is not None
    with pytest.raises(ConfigError) as caught:
        check_node(config.launcher.container, {})
    (problem,) = caught.value.problems
    return problem


def test_a_runtime_that_is_not_installed_is_refused_with_those_that_are(programs: Programs) -> None:
    programs(podman="exit 0")
    field, value, message = refusal(configured("apptainer"))
    assert (field, value) == ("launcher.container.runtime", "apptainer")
    assert message == "apptainer is not installed on this node; install it, or use podman"


def test_pyxis_outside_of_slurm_is_refused(programs: Programs) -> None:
    programs(srun="exit 0")
    assert "only in a job of Slurm" in refusal(configured("pyxis"))[2]


def test_an_image_that_can_neither_be_found_nor_fetched_is_refused_in_the_words_of_the_runtime(
    programs: Programs,
) -> None:
    programs(docker='[ "$1" = pull ] && echo "manifest unknown" >&2; exit 1')
    field, value, message = refusal(configured("docker", "nothing:9"))
    assert (field, value) == ("launcher.container.image", "nothing:9")
    assert "cannot be fetched (manifest unknown); check its name" in message
    assert "docker pull nothing:9" in message


def test_an_image_is_fetched_where_it_is_missing(programs: Programs, tmp_path: Path) -> None:
    programs(podman=f'[ "$1" = pull ] && : > {tmp_path}/pulled; [ "$1" = pull ]')
    container = configured("podman", "there:1").launcher.container
    assert container is not None
    check_node(container, {})
    assert (tmp_path / "pulled").exists()


@pytest.mark.parametrize("runtime", ["apptainer", "enroot", "podman"])
def test_the_path_of_an_image_that_does_not_exist_is_refused(programs: Programs, runtime: str) -> None:
    programs(**{runtime: "exit 0"})
    field, value, message = refusal(configured(runtime, "/no/such/image"))
    assert (field, value) == ("launcher.container.image", "/no/such/image")
    assert "does not exist on this node; use the path of" in message


def test_a_container_that_enroot_has_not_created_is_refused(programs: Programs) -> None:
    programs(enroot="echo torch")
    assert "enroot has no container torhc" in refusal(configured("enroot", "torhc"))[2]


def test_a_mount_whose_source_does_not_exist_is_refused(programs: Programs) -> None:
    programs(podman="exit 0")
    field, value, message = refusal(configured("podman", mounts=["/no/such:/data"]))
    assert (field, value) == ("launcher.container.mounts", "/no/such:/data")
    assert "/no/such does not exist" in message


def test_a_node_allows_no_image_and_no_mount_that_its_owner_has_not_named(tmp_path: Path) -> None:
    config = configured("podman", "team/torch:1", mounts=[f"{tmp_path}:/data"])
    with pytest.raises(ValueError, match="whose owner allows no containers; start its daemon with --images"):
        Allowed().check(config)
    with pytest.raises(ValueError, match=r"images that begin with other/"):
        Allowed(images=("other/",)).check(config)
    with pytest.raises(ValueError, match=r"mounts .* is not allowed on this node, whose owner allows none"):
        Allowed(images=("team/",)).check(config)
    Allowed(images=("team/",), mounts=(str(tmp_path),)).check(config)
    escaping = configured("podman", "team/torch:1", mounts=[f"{tmp_path}/../:/data"])
    with pytest.raises(ValueError, match="is not allowed"):
        Allowed(images=("team/",), mounts=(str(tmp_path),)).check(escaping)


def test_a_node_reports_the_runtimes_that_it_has_where_containers_are_allowed(programs: Programs) -> None:
    programs(podman="exit 0", srun="exit 0")
    assert abilities(Allowed(), "127.0.0.1", {}).containers == []
    shown = abilities(Allowed(images=("team/",)), "127.0.0.1", {})
    assert (shown.containers, shown.images) == (["podman"], ["team/"])
    assert abilities(Allowed(images=("team/",)), "127.0.0.1", {}, kind="slurm").containers == ["pyxis", "podman"]


PYXIS_404 = """\
slurmstepd: pyxis: importing docker image: nvcr.io#nvidia/pytroch:1
slurmstepd: error: pyxis: child 4711 failed with error code: 1
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis: printing enroot log file:
slurmstepd: error: pyxis:     [INFO] Querying registry for permission grant
slurmstepd: error: pyxis:     [ERROR] URL https://nvcr.io/proxy_auth returned error code: 404 Not Found
slurmstepd: error: pyxis: couldn't start container
srun: error: n1: task 0: Exited with exit code 1
"""
APPTAINER_403 = """\
INFO:    Converting OCI blobs to SIF format
FATAL:   Unable to handle docker://team/torch:9 uri: failed to get checksum: reading manifest: unauthorized
"""
DOCKER_125 = """\
docker: Error response from daemon: pull access denied for team/torch, repository does not exist.
See 'docker run --help'.
"""


@pytest.mark.parametrize(
    ("runtime", "code", "output", "field", "why"),
    [
        ("pyxis", 1, PYXIS_404, ".image img", "[ERROR] URL https://nvcr.io/proxy_auth returned error code: 404"),
        ("pyxis", 1, "srun: unrecognized option '--container-image=img'\n", " pyxis img", "unrecognized option"),
        ("enroot", 1, "[ERROR] No such file or directory: /images/a.sqsh\n", ".image img", "[ERROR] No such file"),
        ("enroot", 1, "enroot-mount: failed to mount: /a: Permission\n", " enroot img", "enroot-mount: failed"),
        ("apptainer", 255, APPTAINER_403, ".image img", "Unable to handle docker://team/torch:9 uri"),
        ("docker", 125, DOCKER_125, ".image img", "Error response from daemon: pull access denied"),
        ("podman", 127, "Error: crun: executable file `python9` not found\n", " podman img", "crun: executable file"),
    ],
)
def test_a_runtime_that_cannot_start_a_container_is_quoted_with_field_value_and_remedy(
    runtime: str, code: int, output: str, field: str, why: str
) -> None:
    text = containers.start_failure(runtime, "img", code, f"parlab: starts\n{output}")
    assert text.startswith(f"launcher.container{field}: {runtime} could not start the container: {why}")
    assert text.endswith(("check its name, and that this node may fetch it", "or check the runtime on this node"))


def test_what_a_script_prints_is_no_word_of_its_runtime() -> None:
    assert containers.start_failure("podman", "img", 1, "Error: no such data set\n") == ""
    assert containers.start_failure("pyxis", "img", 1, "slurmstepd: pyxis: imported docker image: img\n") == ""
    assert containers.start_failure("apptainer", "img", 3, "loss is FATAL\n") == ""


def test_an_image_that_the_runtime_cannot_fetch_ends_the_run_in_its_words(
    prepared: Prepare, supervise: Supervise
) -> None:
    script = f"import sys; sys.stderr.write({APPTAINER_403!r}); sys.exit(255)"
    end = supervise(prepared(script, container="apptainer", image="docker://team/torch:9")).ends()
    assert (end.state, end.exit_code) == ("failed", 255)
    assert end.reason.startswith("launcher.container.image docker://team/torch:9: apptainer could not start")
    assert end.reason.endswith("unauthorized; check its name, and that this node may fetch it")


# --- processes that a runtime starts apart ----------------------------------------------------------------------------


def test_processes_that_a_runtime_starts_apart_are_found_by_their_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    marker = f"test-{os.getpid()}-{time.time_ns()}:1/1"
    script = "setsid sleep 60 > /dev/null 2>&1 & echo $!"
    done = subprocess.run(
        ["sh", "-c", script], check=True, capture_output=True, text=True, env={**os.environ, MARKER: marker}
    )
    pid = int(done.stdout)
    try:
        wait_for(lambda: marked_as(marker), "the process has its environment")
        assert pid not in {process.pid for process in processes.descendants()}
        monkeypatch.setattr(processes, "_apart", processes.Apart(frozenset(("docker",)), marker))
        assert marked_as(marker) <= {process.pid for process in processes.descendants()}
        assert marked_as(marker) <= set(telemetry.measured())
    finally:
        processes.kill_all(processes.apart, within_s=5)
    assert marked_as(marker) == set()


def marked_as(marker: str) -> set[int]:
    return {process.pid for process, mark in processes.marked().items() if mark == marker}


def test_processes_of_a_runtime_are_neither_measured_nor_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        wait_for(lambda: Path(f"/proc/{child.pid}/comm").read_text().strip() == "sleep", "it runs")
        assert child.pid in telemetry.measured()
        monkeypatch.setattr(processes, "_apart", processes.Apart(frozenset(("sleep",)), ""))
        assert child.pid not in telemetry.measured()
        assert child.pid in {process.pid for process in processes.descendants()}
        assert child.pid not in {process.pid for process in processes.of_run(processes.descendants())}
        child.kill()


# --- real podman -----------------------------------------------------------------------------------------------------


HYBRID = Path("/sys/fs/cgroup/unified")
"""crun refuses a machine with both versions of cgroups; without the second one it has only the first."""
needs_podman = pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed")
LINKS = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
PYTHON = Path(os.path.realpath(sys.prefix)) / "bin" / "python"
MOUNTS = [f"{path}:{path}:ro" for path in {os.path.realpath(sys.base_prefix), os.path.realpath(sys.prefix), "/usr"}]


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let podman see one version of cgroups only."""
    program = shutil.which("podman")
    if HYBRID.is_mount():
        directory = tmp_path / "programs"
        directory.mkdir()
        script = f"umount {HYBRID} && exec {program} "
        (directory / "podman").write_text(f'#!/bin/sh\nexec unshare --mount sh -c \'{script}"$@"\' podman "$@"\n')
        (directory / "podman").chmod(0o755)
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


@pytest.fixture
def root_directory(podman: None, tmp_path: Path) -> Path:
    """A root directory whose programs and Python are this machine's own, by mounts."""
    root = tmp_path / "root"
    for name in ("etc", "proc", "sys", "dev", "tmp", "run", "usr"):
        (root / name).mkdir(parents=True)
    for name, target in LINKS.items():
        (root / name).symlink_to(target)
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    return root


@pytest.fixture
def image(root_directory: Path) -> Iterator[str]:
    """The same as an image."""
    name = f"localhost/parlab-test:{os.getpid()}"
    with io.BytesIO() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(root_directory, arcname=".")
        subprocess.run(["podman", "import", "-", name], input=packed.getvalue(), check=True, capture_output=True)
    yield name
    subprocess.run(["podman", "image", "rm", "--force", name], check=False, capture_output=True)


Contained = Callable[..., Supervised]


@pytest.fixture
def contained(podman: None, prepared: Prepare, supervise: Supervise, tmp_path: Path) -> Contained:
    """Supervise a script in a container, as a daemon prepares it."""

    def start(script: str, image: str, **container: Any) -> Supervised:
        run = prepared(script)
        own = {"python": str(PYTHON), "mounts": [*MOUNTS, f"{tmp_path}:{tmp_path}"], **container}
        config = configured("podman", image, **own)
        run.config.write_text(json.dumps(config.resolved()))
        launch = run.read_launch()
        argv = command(config, run.config)
        marker = f"test-{os.getpid()}-{time.time_ns()}:7/1"
        launch["argv"] = [*argv[: argv.index("--") + 1], str(PYTHON), launch["argv"][-1]]
        launch["environment"] |= {MARKER: marker}
        run.write_launch({**launch, "container": "podman", "grace_s": 2})
        supervised = supervise(run, **{MARKER: marker})
        supervised.marker = marker
        return supervised

    return start


def container_names() -> list[str]:
    done = subprocess.run(["podman", "ps", "--all", "--format={{.Names}}"], check=True, capture_output=True, text=True)
    return done.stdout.split()


def none_left(run: Supervised) -> None:
    """Assert that neither a process nor a container of a run is left."""
    assert run.training() == []
    assert containers.container_name(run.marker) not in container_names()


@needs_podman
@pytest.mark.slow
def test_a_run_in_a_container_sees_the_image_its_directory_and_its_variables(contained: Contained, image: str) -> None:
    script = """
        import os, sys
        print(sorted(os.listdir("/")), os.getcwd(), os.environ["OWN"], os.environ["PYTHONPATH"], flush=True)
        import runners
        open("written", "w").write("x")
        sys.exit(7)
    """
    run = contained(script, image, environment={"OWN": "set here"})
    final = run.ends()
    assert (final.state, final.exit_code) == ("failed", 7)
    shown = run.output().decode()
    assert "'parlab'" in shown
    assert "'home'" not in shown
    assert f"{run.run.path} set here /parlab" in shown
    assert (run.run.path / "written").read_text() == "x"
    none_left(run)


BUSY = """
    import os, signal, sys, time
    os.environ["RANK"] = "0"
    block = bytearray(200 << 20)
    signal.signal(signal.SIGTERM, lambda *_: (print("told to stop", flush=True), sys.exit(0)))
    print("here", flush=True)
    end = time.monotonic() + 600
    while time.monotonic() < end:
        pass
"""


@needs_podman
@pytest.mark.slow
def test_processes_in_a_container_are_measured_and_told_to_stop_once(
    contained: Contained, root_directory: Path
) -> None:
    run = contained(BUSY, str(root_directory))
    run.says(b"here")
    wait_for(lambda: _largest(run, "memory_bytes") > 200 << 20, "the memory of the container is measured")
    wait_for(lambda: _largest(run, "cpu_pct") > 30, "the processor time of the container is measured")
    run.run.cancel("cancelled by ada")
    final = run.ends()
    assert (final.state, final.reason, final.exit_code) == ("cancelled", "cancelled by ada", 0)
    assert run.output().count(b"told to stop") == 1
    none_left(run)


def _largest(run: Supervised, name: str) -> float:
    events = [json.loads(line) for line in run.output().splitlines() if b'"telemetry"' in line]
    return max((event.get(name, 0.0) for event in events), default=0.0)


@needs_podman
@pytest.mark.slow
def test_a_container_that_ignores_sigterm_is_killed_after_its_grace(contained: Contained, root_directory: Path) -> None:
    script = """
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
        print("here", flush=True)
        time.sleep(600)
    """
    run = contained(script, str(root_directory))
    run.says(b"here")
    run.run.cancel("cancelled by ada")
    begun = time.monotonic()
    final = run.ends()
    assert final.state == "cancelled"
    assert 2 <= time.monotonic() - begun < 8
    none_left(run)


@needs_podman
@pytest.mark.slow
def test_a_rank_killed_in_a_container_is_reported_with_its_signal(contained: Contained, root_directory: Path) -> None:
    run = contained("import os; os.kill(os.getpid(), 9)", str(root_directory))
    final = run.ends()
    assert (final.state, final.exit_code) == ("failed", -9)
    assert "killed by signal 9" in final.reason
    none_left(run)


@needs_podman
@pytest.mark.slow
def test_an_image_that_does_not_exist_ends_the_run_before_a_rank_starts(contained: Contained) -> None:
    run = contained("print('a rank')", "localhost/no-such-image:1")
    final = run.ends()
    assert (final.state, final.exit_code) == ("failed", 2)
    assert final.reason.startswith(
        "launcher.container.image: localhost/no-such-image:1 is not on this node and cannot be fetched"
    )
    assert b"a rank" not in run.output()


@needs_podman
@pytest.mark.slow
def test_a_command_of_the_team_runs_with_its_launcher_in_the_image(
    root_directory: Path, machine: NodeMachine, server: Server, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text("import os; print('rank', os.environ['RANK'], os.listdir('/'), os.getcwd(), flush=True)\n")
    allowed = tmp_path / "allowed.json"
    allowed.write_text(json.dumps([[str(program)]]))
    machine.options = ("--images", str(root_directory.parent), "--mounts", "/")
    machine.start_daemon(TEST_ENGINES="1", PARLAB_ALLOWED_COMMANDS=str(allowed))
    container = {
        "runtime": "podman",
        "image": str(root_directory),
        "python": str(PYTHON),
        "mounts": [*MOUNTS, f"{program}:{program}:ro"],
        "workdir": "/tmp",
    }
    parallel = {"engine": "command", "data_parallel_size": 2}
    server.start(
        1,
        config={
            "parallel": parallel,
            "command": {"argv": [str(program)]},
            "launcher": {"kind": "torchrun", "container": container},
        },
    )
    server.until(lambda: server.reports[1, 1] and server.reports[1, 1][-1].is_final, "the run has ended")
    assert server.reports[1, 1][-1].state == "finished", server.output[1, 1].decode()[-3000:]
    shown = server.output[1, 1].decode()
    assert {line.split()[1] for line in shown.splitlines() if line.startswith("rank ")} == {"0", "1"}
    assert "'parlab'" in shown
    assert "] /tmp" in shown
    assert {rank for batch in server.batches for _, rank, _ in batch.streams} >= {0, 1}, "each has its own stream"


@needs_podman
@pytest.mark.slow
def test_ranks_of_a_real_training_in_a_container_have_streams_and_a_killed_supervisor_leaves_none(
    root_directory: Path, machine: NodeMachine, server: Server
) -> None:
    machine.options = ("--images", str(root_directory.parent), "--mounts", "/")
    machine.start_daemon(TEST_ENGINES="1")
    container = {"runtime": "podman", "image": str(root_directory), "python": str(PYTHON), "mounts": MOUNTS}
    train = {**SMALL["train"], "iterations": 1_000_000}
    server.start(1, config={**SMALL, "train": train, "launcher": {"container": container}})
    server.until(lambda: server.output[1, 1].count(b'"event":"step"') > 10, "both ranks train")
    assert {rank for batch in server.batches for _, rank, _ in batch.streams} >= {0, 1}, "each has its own stream"
    name = containers.container_name(machine.state.marker(machine.run_dir(1)))
    assert name in container_names()
    machine.supervisor(1).kill()
    server.until(lambda: server.reports[1, 1][-1].is_final, "the end is reported")
    assert server.reports[1, 1][-1].state == "lost"
    wait_for(lambda: machine.processes(1) == [], "no process is left")
    assert name not in container_names()
