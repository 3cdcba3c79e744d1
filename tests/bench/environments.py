"""Environments of their own for the packages that parlab is compared with, kept below build/ for later runs."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench.result import Unavailable

KEPT = Path(__file__).resolve().parents[2] / "build" / "bench-environments"


def python_with(requirement: str) -> str:
    """Return the Python of an environment with a package, installed at the first call.

    Raises `Unavailable` if the package cannot be installed.
    """
    directory = _directory(requirement)
    python = str(directory / "bin" / "python")
    if not _is_complete(directory):
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        _install(python, requirement, directory)
    return python


def packages_with(requirement: str) -> Path:
    """Return a directory with a package, to be used beside those of this environment; installed at the first call.

    Raises `Unavailable` if the package cannot be installed.
    """
    directory = _directory(f"{requirement} beside")
    if not _is_complete(directory):
        _install(sys.executable, requirement, directory, "--target", str(directory))
    return directory


def _directory(name: str) -> Path:
    """Return the directory for a requirement and this Python; removes an incomplete installation."""
    key = hashlib.sha256(f"{name} {sys.version} {sys.prefix}".encode()).hexdigest()[:8]
    directory = KEPT / f"{name.replace(' ', '-')}-{key}"
    if directory.exists() and not _is_complete(directory):
        shutil.rmtree(directory)
    return directory


def _is_complete(directory: Path) -> bool:
    return (directory / "complete").exists()


def _install(python: str, requirement: str, directory: Path, *options: str) -> None:
    # Most of the modules are never imported: without --no-compile pip compiles all of them.
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    done = subprocess.run([*pip, *options, requirement], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Unavailable(f"{requirement} cannot be installed: {reason[:200]}")
    (directory / "complete").touch()
