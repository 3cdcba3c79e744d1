"""Runs of another account than the daemon's: what they can and cannot do, with real processes of both."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.node.run_as import check_account, read_account
from runners.supervisor.files import DIRECTORY, trace_name
from tests.conftest import SMALL
from tests.patience import wait_for
from tests.runners.conftest import KEY, ROOT, NodeMachine, Server

USER = "nobody"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may start programs as another account")
TRIES = """
    import glob, json, os, sys
    sys.path.insert(0, {root!r})

    def can(function, *arguments):
        try:
            return str(function(*arguments))
        except OSError:
            return None

    def read(path):
        with open(path, "rb") as file:
            return file.read(100)

    state, supervisor = {state!r}, os.getppid()
    daemon = int(read({pid!r}))
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
    with open("checkpoint", "w") as file:
        file.write("weights")
    with open({trace!r}, "wb") as file:
        file.write(b"a trace")
    seen = {{
        "secrets": [can(os.listdir, path) for path in (state, state + "/runs", state + "/runs/1-1/spool")]
        + [can(read, f"/proc/{{pid}}/environ") for pid in (daemon, supervisor)]
        + [can(read, state + "/" + name) for name in ("key.json", "redis_url", "runs/1-1/launch.json")]
        + [can(os.listdir, os.path.dirname(os.getcwd()))],
        "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
        "home": os.environ["HOME"],
        "values": [name for name, value in os.environ.items() if {key!r} in value or "redis:" in value],
        "status": [status["NoNewPrivs"].strip(), int(status["CapEff"], 16), int(status["CapPrm"], 16)],
        "directory": sorted(os.listdir(".")),
        "config": json.load(open(sys.argv[2]))["model"]["hidden_size"],
    }}
    print("SEEN " + json.dumps(seen), flush=True)
"""


def reachable(path: Path) -> list[str]:
    """Return the arguments that show a directory to all accounts, where one above it is closed to them."""
    closed = [above for above in path.parents if not above.stat().st_mode & 0o001]
    if not closed:
        return []
    top = closed[-1]
    script = (
        f"set -e; copy=$(mktemp -d); mount --bind {path} $copy; mount -t tmpfs -o mode=755 none {top};"
        f' mkdir -p {path}; mount --move $copy {path}; rmdir $copy; exec "$@"'
    )
    return ["unshare", "--mount", "sh", "-c", script, "sh"]


@pytest.fixture
def other(redis_url: str) -> Iterator[NodeMachine]:
    """A machine whose daemon has the option, below a directory that all accounts may enter."""
    prefix = reachable(Path(sys.base_prefix))
    if prefix and subprocess.run([*prefix, "true"], check=False).returncode:
        pytest.skip(f"{sys.base_prefix} is closed to other accounts, and this machine allows no mounts")
    root = Path(tempfile.mkdtemp(prefix="parlab-run-as-"))
    root.chmod(0o711)
    machine = NodeMachine(root, redis_url)
    machine.prefix, machine.options = prefix, ("--run-as", USER, "--no-measure")
    machine.environment["TMPDIR"] = str(root)
    yield machine
    left = machine.close()
    print(machine.log.read_text()[-4000:])
    shutil.rmtree(root)
    assert not left, f"left running: {left}"


def said(server: Server, word: str) -> Any:
    """Serve until run 1 has printed a word; return the JSON after it."""
    output, reports = server.output, server.reports
    is_over = f"the run prints {word} or ends"
    server.until(lambda: word.encode() in output[1, 1] or (reports[1, 1] and reports[1, 1][-1].is_final), is_over)
    assert word in output[1, 1].decode(), (output[1, 1].decode(), reports[1, 1])
    line = next(line for line in server.output[1, 1].decode().splitlines() if line.startswith(word))
    return json.loads(line.removeprefix(word) or "null")


def work(machine: NodeMachine) -> Path:
    return machine.state.work_path / "1-1"


@needs_root
def test_a_run_cannot_read_the_secrets_of_its_daemon_but_works_as_before(other: NodeMachine, server: Server) -> None:
    daemon = other.start_daemon()
    pid = other.state_dir.parent / "pid"
    pid.write_text(str(daemon.pid))
    (other.state_dir / "redis_url").write_text("redis://:secret@here")
    names = {"root": str(ROOT), "state": str(other.state_dir), "pid": str(pid), "key": KEY.decode()}
    other.script(1, TRIES.format(**names, trace=f"{DIRECTORY}/{trace_name(0)}"))
    server.start(1)
    seen = said(server, "SEEN ")
    assert seen["secrets"] == [None] * 9
    account = read_account(USER, is_slurm=False, shape="")
    assert account is not None
    assert seen["ids"] == [[account.uid] * 3, [account.gid] * 3, account.groups]
    assert (seen["home"], seen["values"], seen["config"]) == (account.home, [], 32)
    assert seen["status"] == ["1", 0, 0]
    assert {"checkpoint", "config.json", DIRECTORY} <= set(seen["directory"])
    assert server.end_of(1).state == "finished"
    pieces = [piece for batch in server.batches for piece in batch.files]
    assert [piece.name for piece in pieces] == [trace_name(0)]
    server.until(lambda: server.heartbeats, "a heartbeat")
    assert server.heartbeats[-1].hardware["run_as"] == USER
    server.until(lambda: not work(other).exists(), "its directory is deleted once everything is stored")


@needs_root
def test_a_stopped_run_has_its_grace_and_nothing_of_it_survives(other: NodeMachine, server: Server) -> None:
    other.start_daemon()
    other.script(
        1,
        """
        import os, signal, time
        def stop(*_):
            print("SAVED", flush=True)
        signal.signal(signal.SIGTERM, stop)
        if os.fork() == 0:
            os.setsid()
        os.write(1, b"READY\\n")  # in one piece: two processes write
        while True:
            time.sleep(1)
        """,
    )
    server.start(1, launcher={"grace_s": 1})
    said(server, "READY")
    server.cancel(1)
    end = server.end_of(1)
    assert (end.state, end.reason) == ("cancelled", "cancelled by ada")
    assert b"SAVED" in server.output[1, 1]
    wait_for(lambda: not other.processes(1), "no process of the run is left")


@needs_root
@pytest.mark.slow
def test_two_ranks_of_torchrun_train_as_the_account_and_save_before_they_end(
    other: NodeMachine, server: Server
) -> None:
    other.start_daemon(TEST_ENGINES="1")
    train = {**SMALL["train"], "iterations": 1_000_000}
    launcher = {"timeout_s": 600, "grace_s": 60}
    server.start(1, config={**SMALL, "train": train, "launcher": launcher, "checkpoint": {"every_steps": 1_000_000}})
    server.until(lambda: server.output[1, 1].count(b'"event":"step"') > 10, "both ranks train")
    account = pwd.getpwnam(USER).pw_uid
    own = [process for process in other.processes(1) if process.pid != other.supervisor(1).pid]
    by_rank = {process.environ().get("RANK"): process.uids() for process in own}
    assert {None, "0", "1"} <= set(by_rank), "the launcher and both ranks"
    assert {uid for uids in by_rank.values() for uid in uids} == {account}
    assert {rank for batch in server.batches for _, rank, _ in batch.streams} >= {0, 1}, "each has its own stream"
    server.cancel(1)
    end = server.end_of(1)
    assert end.state == "cancelled", end.reason
    assert b"SIGTERM was received: ends after step" in server.output[1, 1]
    (saved,) = (other.state.work_path / "checkpoints-1").glob("step-*")
    assert {path.stat().st_uid for path in (saved, *saved.rglob("*"))} == {account}
    wait_for(lambda: not other.processes(1), "nothing of the run is left")


@needs_root
@pytest.mark.parametrize(
    "mode", [pytest.param(0o777, id="open", marks=pytest.mark.slow), pytest.param(0o755, id="closed")]
)
def test_root_makes_a_shared_folder_of_checkpoints_only_where_the_account_may(
    other: NodeMachine, server: Server, mode: int
) -> None:
    shared = other.state_dir.parent / "shared"
    shared.mkdir()
    shared.chmod(mode)
    other.start_daemon()
    other.script(1, "import os; print('READY', os.path.isdir(os.environ['PARLAB_CHECKPOINT_DIR']), flush=True)")
    server.start(1, config={**SMALL, "checkpoint": {"every_s": 60, "directory": str(shared)}})
    is_open = mode == 0o777
    server.until(lambda: f"READY {is_open}".encode() in server.output[1, 1], "the script has looked")
    assert {(path.name, path.stat().st_uid) for path in shared.iterdir()} == {
        (name, pwd.getpwnam(USER).pw_uid) for name in ("run-1", ".run-1.lock") if is_open
    }


@needs_root
def test_processes_of_a_killed_supervisor_are_ended(other: NodeMachine, server: Server) -> None:
    other.start_daemon()
    other.script(1, "import os, time\nos.fork() or os.setsid()\nos.write(1, b'READY\\n')\ntime.sleep(600)")
    server.start(1)
    said(server, "READY")
    supervisor = other.supervisor(1)
    uids = [process.uids().real for process in other.processes(1) if process.pid != supervisor.pid]
    assert set(uids) == {pwd.getpwnam(USER).pw_uid}
    supervisor.kill()
    assert server.end_of(1).state == "lost"
    wait_for(lambda: not other.processes(1), "no process of the run is left")


@needs_root
def test_root_follows_nothing_that_a_run_has_planted(other: NodeMachine, server: Server) -> None:
    other.start_daemon()
    closed = other.state_dir.parent / "closed"
    closed.mkdir(mode=0o700)
    kept = [closed / name for name in (trace_name(0), "0", "1", "secret")]
    for path in kept:
        path.write_text("of root")
    other.script(
        1,
        f"""
        import os
        for name in ("files", "streams"):
            os.path.exists(name) and os.rename(name, name + "-before")
            os.symlink({str(closed)!r}, name)
        trace = "files-before/" + {trace_name(0)!r}
        os.symlink({str(kept[0])!r}, trace)
        os.mkfifo(trace.replace("rank0", "rank1"))
        os.symlink({str(closed)!r}, "link")
        for _ in range(2000):
            os.mkdir("deep")
            os.chdir("deep")
        print("PLANTED", flush=True)
        """,
    )
    server.start(1)
    assert server.end_of(1).state == "finished"
    server.until(lambda: not work(other).exists(), "its directory is deleted")
    assert [path.read_text() for path in kept] == ["of root"] * 4
    assert not [piece for batch in server.batches for piece in batch.files]


@needs_root
def test_a_node_with_readable_secrets_does_not_start(other: NodeMachine) -> None:
    other.state.root.chmod(0o755)
    command = [*other.prefix, sys.executable, "-m", "tests.runners.node_process", *other.arguments()]
    ended = subprocess.run(command, env=other.environment, cwd=ROOT, capture_output=True, text=True, check=False)
    other.log.write_text(ended.stderr)
    assert ended.returncode == 2
    assert f"--run-as {USER} can read {other.state_dir}; chmod go= them, as root" in ended.stderr


@needs_root
def test_an_account_that_cannot_reach_its_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    account = read_account(USER, is_slurm=False, shape="")
    assert account is not None
    with pytest.raises(ValueError, match=r"cannot start runs: .*below directories that all accounts may enter"):
        check_account(account, tmp_path / "runs", [])
    (tmp_path / "link").symlink_to("/tmp")
    with pytest.raises(ValueError, match="must be a directory of root"):
        check_account(account, tmp_path / "link", [])


def test_without_root_the_setting_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ValueError, match=r"--run-as nobody requires a daemon of root.*start it as root, or leave"):
        read_account(USER, is_slurm=False, shape="")
    assert read_account("", is_slurm=True, shape="eth0") is None


@pytest.mark.parametrize(
    ("name", "setting", "text"),
    [
        ("no-such-account", {}, "no such account; create it"),
        ("root", {}, "is root itself"),
        (USER, {"is_slurm": True}, "cannot be used with --slurm"),
        (USER, {"shape": "eth0"}, "cannot be used with --shape"),
    ],
)
def test_accounts_and_options_that_separate_nothing_are_refused(
    name: str, setting: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(ValueError, match=text):
        read_account(name, **{"is_slurm": False, "shape": "", **setting})


@needs_root
def test_slower_links_are_refused_with_a_remedy(other: NodeMachine, server: Server) -> None:
    other.start_daemon()
    server.start(1, config={**SMALL, "network": {"apply": "emulate", "delay_ms": 1}})
    end = server.end_of(1)
    assert end.state == "failed"
    assert f"network.apply emulate: slower links require root, and the runs of this node have the account {USER}" in (
        end.reason
    )
