"""A container as processes of this machine, with mounts, a host name and process IDs of their own.

Its root is an overlay over the root of this machine, so that every image has the machine's files, and what a container
writes outside of its volumes is gone with it. It uses the machine's network.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.kubernetes.plane.api import Object

ROOT = Path(__file__).resolve().parents[3]
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ISOLATED = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--uts", "--ipc"]
KILLED = 128 + signal.SIGKILL
_VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class Mount(NamedTuple):
    """A volume at its place in a container."""

    path: str
    source: Path | None
    """None: memory of the container's own."""
    is_read_only: bool = False
    size: str = ""


class Container:
    """One start of a container; the processes go on while nobody watches them."""

    def __init__(self, directory: Path, log: Path) -> None:
        self.directory, self.log = directory, log

    @property
    def has_started(self) -> bool:
        return (self.directory / "enter.sh").exists()

    def start(
        self, spec: Object, variables: dict[str, str], mounts: list[Mount], etc: Path, hostname: str, user: int | None
    ) -> None:
        """Start the command of a container; raises ValueError if it has none."""
        environment = _image_environment(spec["image"]) | variables
        command = [expanded(part, environment) for part in [*spec.get("command", []), *spec.get("args", [])]]
        if not spec.get("command"):
            raise ValueError("no command specified")
        for name in ("root", "upper", "work"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        place = spec.get("workingDir") or str(ROOT)
        lines = [*self._root(etc), *_mounted(mounts), f"hostname {shlex.quote(hostname)}", _entered(place)]
        who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        pairs = [f"{name}={value}" for name, value in environment.items()]
        inside = ["sh", "-c", 'cd "$0" && exec "$@"', place, *command]
        lines.append(f"exec {shlex.join(['chroot', '.', 'env', '-i', *pairs, *who, *inside])}")
        script = self.directory / "enter.new"
        script.write_text("set -e\nexec 2>&3 3>&-\n" + "\n".join(lines) + "\n")
        script.rename(self.directory / "enter.sh")
        self._run()

    def exit_code(self) -> int | None:
        """Return the exit code, None while the container runs; 137 where its processes were killed from outside."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self.directory / "exit").read_text())
        if self._watcher() is not None:
            return None
        with contextlib.suppress(FileNotFoundError, ValueError):  # it has ended meanwhile
            return int((self.directory / "exit").read_text())
        return KILLED

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the first process; SIGKILL ends all."""
        first = self._first()
        if first is not None:
            with contextlib.suppress(psutil.Error):
                first.send_signal(number)

    def _run(self) -> None:
        """Start a shell that keeps the exit code, also when the kubelet is killed."""
        unshare = shlex.join(["unshare", *ISOLATED, "sh", "enter.sh"])
        # unshare fails with a message, and 1, where it should end by the SIGKILL of the container.
        script = f"echo $$ > watcher.pid; {unshare} 3>&2 2>failed; code=$?; [ -s failed ] && code={KILLED}"
        script += "; echo $code > exit.new; mv exit.new exit"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            watcher = subprocess.Popen(
                ["sh", "-c", script],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # The shell may not have written it yet, and a container without a watcher counts as killed.
        (self.directory / "watcher.pid").write_text(str(watcher.pid))

    def _root(self, etc: Path) -> Iterator[str]:
        layers = f"lowerdir=/,upperdir={self.directory}/upper,workdir={self.directory}/work"
        yield f"mount -t overlay overlay -o {layers} {self.directory}/root"
        yield f"cd {self.directory}/root"
        yield "mount -t proc proc proc; mount --rbind /dev dev; mount --rbind /sys sys"
        for name in ("hosts", "resolv.conf"):
            yield f"mount --bind {etc}/{name} etc/{name}"

    def _watcher(self) -> psutil.Process | None:
        with contextlib.suppress(psutil.Error, FileNotFoundError, ValueError):
            process = psutil.Process(int((self.directory / "watcher.pid").read_text()))
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(self.directory):
                return process
        return None

    def _first(self) -> psutil.Process | None:
        """Return the process that is number 1 in the container."""
        with contextlib.suppress(psutil.Error, IndexError):
            watcher = self._watcher()
            return watcher.children()[0].children()[0] if watcher else None
        return None


def expanded(text: str, variables: dict[str, str]) -> str:
    """Replace $(NAME) by variables, as Kubernetes does."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return _VARIABLE.sub(value, text)


def _image_environment(image: str) -> dict[str, str]:
    """Return the variables of an image: all have Python with parlab, but for those that are plain."""
    own = {"HOME": "/root", "LANG": "C.UTF-8", "TMPDIR": "/var/tmp", "PATH": SYSTEM}
    if "plain" in image:
        return own
    return own | {"PATH": f"{Path(sys.executable).parent}:{SYSTEM}", "PYTHONPATH": str(ROOT), "NO_PROXY": "*"}


def _mounted(mounts: list[Mount]) -> Iterator[str]:
    for mount in sorted(mounts, key=lambda each: each.path):
        place = shlex.quote(f".{mount.path}")
        if mount.source is None:
            size = f" -o size={mount.size}" if mount.size else ""
            yield f"mkdir -p {place}; mount -t tmpfs{size} tmpfs {place}"
            continue
        made = f"mkdir -p {place}" if mount.source.is_dir() else f"mkdir -p $(dirname {place}); touch {place}"
        yield f"{made}; mount --bind {shlex.quote(str(mount.source))} {place}"
        if mount.is_read_only:
            yield f"mount -o remount,bind,ro {place}"


def _entered(directory: str) -> str:
    return f"mkdir -p {shlex.quote(f'.{directory}')}"


def clear(directory: Path) -> None:
    """Kill all containers below a directory, each with all its processes at once, as a machine that is switched off."""
    for path in directory.rglob("watcher.pid"):
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            watcher = psutil.Process(int(path.read_text()))
            if watcher.cwd() != str(path.parent):
                continue  # another process has the number by now
            entered = watcher.children()
            for process in [watcher, *(first for each in entered for first in each.children()), *entered]:
                with contextlib.suppress(psutil.Error):
                    os.kill(process.pid, signal.SIGKILL)
