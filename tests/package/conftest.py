"""The wheel of this checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the build tools of this environment."""
    directory = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", str(directory), str(ROOT)], check=True)
    [path] = directory.glob("*.whl")
    return path
