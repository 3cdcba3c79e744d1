"""Environments of their own for the packages that parlab is compared with."""

import subprocess
import sys
from pathlib import Path

from tests.bench.result import Unavailable


def installed(directory: Path, requirement: str) -> str:
    """Install a package into an environment below `directory`; return its Python.

    Raises `Unavailable` if the package cannot be installed.
    """
    python = str(directory / "venv" / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", requirement]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Unavailable(f"{requirement} cannot be installed: {reason[:200]}")
    return python
