"""`python -m tests.signon.install`: fetch the certified provider of OpenID Connect, into the virtual environment.

It needs node and npm; where there are none, the provider of PyPI stands alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

DIRECTORY = Path(sys.prefix) / "issuer"
PACKAGE = "oidc-provider@8.8.1"


def is_installed() -> bool:
    """Return whether the provider can be started."""
    return shutil.which("node") is not None and (DIRECTORY / "node_modules" / "oidc-provider").is_dir()


def main() -> int:
    """Fetch the provider unless it is there; report what is missing."""
    npm = shutil.which("npm")
    if npm is not None and not is_installed():
        print(f"parlab: fetching {PACKAGE}", flush=True)
        DIRECTORY.mkdir(exist_ok=True)
        command = [npm, "install", "--prefix", str(DIRECTORY), "--no-audit", "--no-fund", "--silent", PACKAGE]
        with suppress(subprocess.TimeoutExpired):  # npm tries a registry that does not answer for a quarter of an hour
            subprocess.run(command, check=False, stdout=sys.stderr, timeout=120)
    if not is_installed():
        print(f"parlab: without {PACKAGE}, single sign-on is tested with the provider of PyPI", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
