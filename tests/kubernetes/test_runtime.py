"""The copy of parlab and its Python, for pods whose image has neither."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runners.node.kubernetes.runtime import copy_runtime

PROGRAM = """
import importlib.util, sys
import runners.node.kubernetes.member, runners.node.jobs.ship
print(sys.prefix, runners.__file__, importlib.util.find_spec("torch"))
"""


@pytest.mark.slow
def test_a_copied_python_has_what_supervisor_and_shipping_import_and_no_torch(tmp_path: Path) -> None:
    copy_runtime(tmp_path / "copy")
    moved = (tmp_path / "copy").rename(tmp_path / "moved")
    command = [str(moved / "bin" / "python"), "-c", PROGRAM]
    done = subprocess.run(command, env={}, cwd="/", capture_output=True, text=True, check=True)
    prefix, package, torch = done.stdout.split()
    assert (prefix, torch) == (str(moved), "None")
    assert Path(package).is_relative_to(moved)
    # What the ranks see on PYTHONPATH, with a Python of their own.
    (site,) = moved.glob("lib/python*/site-packages")
    assert sorted(path.name for path in site.iterdir()) == ["parlab", "parlab.pth", "runners"]
