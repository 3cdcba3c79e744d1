"""`python -m tests.slurm.install`: check for Slurm and munge, install them if missing, or report why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PACKAGES = ("slurm-wlm", "munge")
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "munged")


def missing() -> list[str]:
    """Return the programs of a Slurm cluster that are not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return [program for program in _PROGRAMS if not shutil.which(program, path=path)]


def why_not() -> str:
    """Return why no cluster can run on this machine; empty if it can."""
    if os.geteuid() != 0:
        return "a Slurm cluster on one machine needs root: slurmd starts jobs as their user"
    if not missing():
        return ""
    return f"{', '.join(missing())} missing; install the packages {' and '.join(PACKAGES)}"


def main() -> int:
    """Install the packages if this user may; a machine without them skips the tests with the reason."""
    if why_not() and os.geteuid() == 0 and shutil.which("apt-get"):
        print("parlab: no Slurm found, installing the packages " + " and ".join(PACKAGES), flush=True)
        _apt("update", "-q")
        _apt("install", "-y", "-q", "--no-install-recommends", *PACKAGES)
    if reason := why_not():
        print(f"parlab: the tests with Slurm will be skipped: {reason}", file=sys.stderr)
    return 0


def _apt(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", *arguments], stdout=sys.stderr, env=environment, check=False)


if __name__ == "__main__":
    sys.exit(main())
