"""`python -m tests.kubernetes.plane.keeper ROOT`: end all pods below a directory once the standard input has ended.

Pods outlive their kubelets; this process outlives the tests that started it, also when they are killed.
"""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

from tests.kubernetes.plane.containers import clear


def main(root: str) -> None:
    """Wait for the end of the input, and end what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for _ in range(3):  # a pod may be starting
        clear(Path(root))
    shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
