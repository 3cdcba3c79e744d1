"""`--run-as USER`: a daemon of root starts what its runs execute as another account, which cannot read its secrets."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

SECRETS = ("REDIS_URL", "PARLAB_NODE_KEY", "PARLAB_NODE_KEY_FILE", "CELERY_BROKER_URL")
"""Variables that the daemon needs and a run must not see."""
PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_PROBE_S = 60.0
_MARK = "PARLAB_PROBE"
# Beginnings of variables that the daemon's session, its service manager or a server beside it may have.
_OWN = (
    *("XDG_", "SUDO_", "DBUS_", "SSH_", "MAIL", "CREDENTIALS_DIRECTORY", "DATABASE_URL", "EMAIL_URL"),
    *(f"PARLAB_{name}" for name in ("NODE_", "STATE_DIR", "DATA_DIR", "SECRET_KEY", "OIDC_", "STORAGE_", "ARCHIVE_")),
    "PARLAB_METRICS_TOKEN",
)
# Prints which of its arguments this account may enter or read, once the daemon has looked at its environment.
_PROBE = """
import os, sys
sys.stdin.read()
import runners
os.access(sys.argv[1], os.X_OK) or sys.exit(sys.argv[1] + " cannot be entered")
sys.stdout.write("\\n".join(path for path in sys.argv[2:] if os.access(path, os.R_OK) or os.path.isdir(path + "/.")))
"""


def without_secrets(base: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the secrets of the daemon."""
    return {name: value for name, value in base.items() if name not in SECRETS}


class Account(NamedTuple):
    name: str
    uid: int
    gid: int
    groups: list[int]
    home: str

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return an environment without what belongs to the account of the daemon."""
        kept = {name: value for name, value in base.items() if not name.startswith(_OWN)}
        return kept | {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Let this process, of one thread, act as the account."""
        groups, group, user = os.getgroups(), os.getegid(), os.geteuid()
        os.setgroups(self.groups)
        os.setegid(self.gid)
        os.seteuid(self.uid)
        try:
            yield
        finally:
            os.seteuid(user)
            os.setegid(group)
            os.setgroups(groups)

    def popen_options(self) -> dict[str, Any]:
        """Return the arguments with which subprocess starts a program as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": self.groups}


def read_account(name: str, *, is_slurm: bool, is_kubernetes: bool = False, shape: str) -> Account | None:
    """Return the account of a setting; None for an empty one. Raises ValueError with the remedy."""
    if not name:
        return None
    if is_kubernetes:
        raise ValueError("--run-as cannot be used with --kubernetes: pods run as the account of the controller")
    if is_slurm:
        raise ValueError("--run-as cannot be used with --slurm: Slurm starts jobs as the account that submits them")
    if shape:
        raise ValueError(
            "--run-as cannot be used with --shape: a run needs root to shape an interface; use one of them"
        )
    if os.geteuid() != 0:
        raise ValueError(
            f"--run-as {name} requires a daemon of root, which alone may start programs as another account;"
            " start it as root, or leave --run-as out"
        )
    try:
        row = pwd.getpwnam(name)
    except KeyError:
        raise ValueError(f"--run-as {name}: no such account; create it: useradd --create-home {name}") from None
    if row.pw_uid == 0:
        raise ValueError(f"--run-as {name} is root itself, which can read everything; use another account")
    groups = sorted({group.gr_gid for group in grp.getgrall() if name in group.gr_mem} | {row.pw_gid})
    return Account(name, row.pw_uid, row.pw_gid, groups, row.pw_dir)


def secret_paths(state: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return what runs must not read: the state directory, the key, and credentials of systemd."""
    named = [environment.get(name, "") for name in ("PARLAB_NODE_KEY_FILE", "CREDENTIALS_DIRECTORY")]
    return [state, *(Path(path) for path in named if path)]


def check_account(account: Account, work: Path, secrets: Iterable[Path]) -> None:
    """Try what runs of this account need and must not be able to do here. Raises ValueError with the remedy.

    `work` is the directory with the directories of the runs, which is created; `secrets` are files and directories.
    """
    _make(work)
    readable = _try(account, work, secrets)
    if readable:
        raise ValueError(f"--run-as {account.name} can read {', '.join(readable)}; chmod go= them, as root")


def _make(work: Path) -> None:
    with contextlib.suppress(FileExistsError):
        work.mkdir(mode=0o711, parents=True)
    for path in (work, *work.parents):
        found = path.lstat()
        is_open = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or is_open:
            raise ValueError(
                f"--run-as: {path} must be a directory of root in which no other account may rename files;"
                " use another --state-dir, like /var/lib/parlab-node"
            )
    work.chmod(0o711)


def _try(account: Account, work: Path, secrets: Iterable[Path]) -> list[str]:
    try:
        child: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-c", _PROBE, str(work), *map(str, secrets)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            env={"PATH": os.defpath, "PYTHONPATH": str(PACKAGE_ROOT), "PYTHONDONTWRITEBYTECODE": "1", _MARK: "1"},
            **account.popen_options(),
        )
    except OSError as error:
        raise ValueError(_unusable(account, f"{sys.executable}: {error.strerror}")) from None
    with child:
        is_seen = _is_seen(child.pid)
        try:
            output, errors = child.communicate(timeout=_PROBE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            raise ValueError(_unusable(account, f"{sys.executable} does not end within {_PROBE_S:g} s")) from None
    if not is_seen:
        raise ValueError(
            f"--run-as {account.name}: the daemon cannot see the environment of processes of this account, by which it"
            " finds what a run has left; give it CAP_SYS_PTRACE"
        )
    if child.returncode:
        raise ValueError(_unusable(account, (errors.strip().splitlines() or ["it fails"])[-1]))
    return output.splitlines()


def _is_seen(pid: int) -> bool:
    try:
        return _MARK.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _unusable(account: Account, problem: str) -> str:
    return (
        f"--run-as {account.name} cannot start runs: {problem}; install Python and parlab, and choose --state-dir,"
        " below directories that all accounts may enter, like /opt and /var/lib"
    )
