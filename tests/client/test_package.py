"""The installed package: light, and on every Python from 3.9 that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from parlab.client import journal
from parlab.client.version import VERSION
from tests.client.conftest import ROOT

VERSIONS = tuple(f"3.{minor}" for minor in range(9, 15))
CHECK = """
import sys
import parlab
assert sys.version.startswith(sys.argv[1] + "."), sys.version
with parlab.init("Light", {"a": {"b": 1}}) as run:
    for step in range(3):
        with run.phase("forward"):
            run.log({"loss": 1.5, "nan": float("nan"), "text": "x"}, step=step)
from parlab.client import callbacks
from parlab.client.command import commands
heavy = {"django", "pydantic", "torch", "celery", "numpy", "redis", "psutil"} & {m.split(".")[0] for m in sys.modules}
assert not heavy, heavy
"""


@cache
def interpreters() -> dict[str, str]:
    """Return the Pythons of this machine by version: those on the path, and those that pyenv manages."""
    candidates = [path for version in VERSIONS if (path := shutil.which(f"python{version}"))]
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=False).stdout.strip()
        candidates += [str(path) for path in sorted(Path(root).glob("versions/3.*/bin/python"))]
    found: dict[str, str] = {}
    for candidate in [*candidates, sys.executable]:
        code = "import sys, zlib; print('%d.%d' % sys.version_info[:2])"
        answer = subprocess.run([candidate, "-c", code], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip() in VERSIONS:
            found.setdefault(answer.stdout.strip(), candidate)
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as pip installs it from a checkout, in a directory of its own."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    target = tmp_path_factory.mktemp("package") / "target"
    subprocess.run([*pip, "--no-build-isolation", "--target", str(target), str(ROOT)], check=True)
    return target


@pytest.mark.parametrize("version", VERSIONS)
def test_a_script_records_on_this_python_with_the_standard_library_alone(
    version: str, installed: Path, tmp_path: Path
) -> None:
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed on this machine")
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed), "PARLAB_HOME": str(tmp_path)}
    script = subprocess.run(
        [python, "-S", "-c", CHECK, version], env={**environ, "PARLAB_OFFLINE": "1"}, capture_output=True, text=True
    )
    assert script.returncode == 0, script.stderr
    [stream] = (tmp_path / "spool").iterdir()
    stretch = journal.read_stretch(stream / "records", 0, 1 << 20)
    assert stretch.output.count(b'"event":"step"') >= 3
    assert b'"kind": "end", "state": "finished"' in stretch.reports[-1]


def test_a_project_with_a_package_runners_of_its_own_records(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "runners").mkdir()
    (tmp_path / "runners" / "__init__.py").touch()
    (tmp_path / "train.py").write_text(
        'import parlab\nwith parlab.init("x") as run:\n    run.log({"loss": 1.0}, step=1)\n'
    )
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed), "PARLAB_HOME": str(tmp_path / "home")}
    script = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**environ, "PARLAB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert script.returncode == 0, script.stderr
    assert len(list((tmp_path / "home" / "spool").iterdir())) == 1


@pytest.mark.parametrize("command", [["bin/parlab"], ["-m", "parlab"]], ids=["parlab", "python -m parlab"])
def test_the_command_is_installed_and_explains_itself(command: list[str], installed: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed)}
    for argument, answer in (("--help", "sync"), ("--version", f"parlab {VERSION}\n")):
        process = subprocess.run(
            [sys.executable, *command, argument], cwd=installed, env=environ, capture_output=True, text=True
        )
        assert process.returncode == 0
        assert answer in process.stdout
