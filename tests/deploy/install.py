"""`python -m tests.deploy.install`: fetch the programs of Debian that check `deploy/`, without installing them.

Packages are unpacked into the virtual environment: nothing starts, and no root is needed. Where there is no Debian, the
checks in Python stand alone. Podman works only in its place: as root it is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

UNPACKED = Path(sys.prefix) / "debian"
PACKAGES = {"nginx": "nginx", "caddy": "caddy", "prometheus": "prometheus", "promtool": "prometheus"}
"""Program -> package that has it."""


def program(name: str) -> str | None:
    """Return the path of a program of this machine or of an unpacked package; None if there is none."""
    places = [
        os.environ.get("PATH", ""),
        "/usr/sbin",
        "/sbin",
        *(str(UNPACKED / "usr" / each) for each in ("bin", "sbin")),
    ]
    return shutil.which(name, path=os.pathsep.join(places))


def main() -> int:
    """Fetch what is missing; report what could not be fetched."""
    missing = sorted({package for name, package in PACKAGES.items() if program(name) is None})
    if missing and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        print("parlab: fetching " + ", ".join(missing), flush=True)
        if not _fetch(missing) and os.geteuid() == 0:
            _run(["apt-get", "update", "-q"])
            _fetch(missing)
    if shutil.which("podman") is None and shutil.which("apt-get") and os.geteuid() == 0:
        print("parlab: installing podman, for tests of containers", flush=True)
        _run(["apt-get", "update", "-q"])
        _run(["apt-get", "install", "-y", "-q", "--no-install-recommends", "podman", "crun"])
    if absent := sorted(name for name in PACKAGES if program(name) is None):
        print(f"parlab: without {', '.join(absent)}, deploy/ is checked in Python alone", file=sys.stderr)
    return 0


def _fetch(packages: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)  # apt fetches as a user of its own
        if not _run(["apt-get", "download", "-q", *packages], Path(directory)):
            return False
        return all(_run(["dpkg-deb", "--extract", str(path), str(UNPACKED)]) for path in Path(directory).glob("*.deb"))


def _run(command: list[str], directory: Path | None = None) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, stdout=sys.stderr, cwd=directory, env=environment, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
