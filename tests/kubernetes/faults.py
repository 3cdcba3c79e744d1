"""`python -m tests.kubernetes.faults`: faults at random on a real control plane, and what they left.

Some runs are always going. Each fault strikes a part of the cluster, the controller or a run; then all is repaired,
the runs that it ends must have ended once and as such, and all others must go on. Prints a line for each fault and
writes build/faults-kubernetes.json.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

import django

from tests.kubernetes.plane.build import why_not
from tests.kubernetes.plane.cluster import running


def main() -> int:
    """Run a campaign; return 1 if anything was lost, doubled or left."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=100, help="number of faults")
    parser.add_argument("--seed", type=int, default=1, help="the same seed chooses the same kinds and pauses")
    parser.add_argument("--kinds", default="", help="kinds of faults, separated by commas; default: all")
    arguments = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # also then everything that was started is ended
    with tempfile.TemporaryDirectory(prefix="parlab-faults-", dir="/var/tmp") as name, running() as plane:
        os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.settings", "PARLAB_DATA_DIR": name}
        django.setup()
        from tests.kubernetes.campaign import run_campaign  # imports models

        return run_campaign(plane, Path(name), arguments)


if __name__ == "__main__":
    sys.exit(main())
