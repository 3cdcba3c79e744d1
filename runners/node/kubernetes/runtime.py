"""`python -m runners.node.kubernetes.runtime TARGET`: copy this Python with parlab, for a pod whose image has neither.

The copy is one directory that is mounted where this Python's environment is, so that all paths are the same. It has no
torch: the ranks use the Python of their image (kubernetes.python). On PYTHONPATH they see parlab alone, because the
packages that the supervisor needs lie beside it, where only the copied Python looks.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from runners.node.launch.containers import PACKAGE_ROOT

NEEDED = ("celery", "cryptography", "nvidia-ml-py", "packaging", "psutil", "pydantic", "redis")
"""What supervisor and shipping import."""
BESIDE = "parlab-packages"
_LEFT_OUT = shutil.ignore_patterns("site-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "__pycache__")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def copy_runtime(target: Path) -> None:
    """Copy interpreter, library, parlab and the packages that it needs."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = target / "lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=_LEFT_OUT, dirs_exist_ok=True)
    _copy_interpreter(target, version)
    site = library / "site-packages"
    for name in ("parlab", "runners"):
        shutil.copytree(PACKAGE_ROOT / name, site / name, ignore=_LEFT_OUT, dirs_exist_ok=True)
    beside = library / BESIDE
    for distribution in needed():
        _copy_distribution(distribution, beside)
    (site / "parlab.pth").write_text(f"../{BESIDE}\n")


def _copy_interpreter(target: Path, version: str) -> None:
    binaries = target / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    real = Path(sys.executable).resolve()
    shutil.copy2(real, binaries / version)
    for name in {"python", "python3", Path(sys.executable).name} - {version}:
        (binaries / name).unlink(missing_ok=True)
        (binaries / name).symlink_to(version)
    shared = Path(sysconfig.get_config_var("LIBDIR") or "") / (sysconfig.get_config_var("INSTSONAME") or "")
    if shared.is_file():
        shutil.copy2(shared, target / "lib" / shared.name)


def needed() -> list[metadata.Distribution]:
    """Return the distributions that supervisor and shipping need, with all that those need."""
    found: dict[str, metadata.Distribution] = {}
    names = list(NEEDED)
    while names:
        name = names.pop().lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for requirement in found[name].requires or ():
            if "extra ==" not in requirement and (match := _NAME.match(requirement)):
                names.append(match[0])
    return list(found.values())


def _copy_distribution(distribution: metadata.Distribution, target: Path) -> None:
    for file in distribution.files or ():
        if ".." in file.parts or "__pycache__" in file.parts:
            continue  # programs, which the supervisor does not start
        source, place = Path(str(distribution.locate_file(file))), target / file
        if source.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, place)


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m runners.node.kubernetes.runtime", description=__doc__)
    parser.add_argument("target", type=Path, help="empty directory, which the pod mounts where this Python is")
    copy_runtime(parser.parse_args(arguments).target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
