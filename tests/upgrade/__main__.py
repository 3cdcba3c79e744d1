"""Upgrade a server and a node from an earlier revision while a run trains, and check that nothing is lost."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.upgrade.release import NoHistory, earlier
from tests.upgrade.walk import upgrade


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.upgrade", description=__doc__)
    parser.add_argument("--from", dest="revision", help="revision; default: the last release")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite", help="default: sqlite")
    arguments = parser.parse_args()
    try:
        revision = arguments.revision or earlier()
    except NoHistory as error:
        parser.error(f"{error}; name a revision with --from")
    with tempfile.TemporaryDirectory(prefix="parlab-upgrade-", dir="/var/tmp") as directory:
        done = upgrade(revision, Path(directory), has_postgres=arguments.database == "postgres")
    before, old_node, new_node, _ = done.steps
    sys.stdout.write(
        f"from {revision[:12]}, {arguments.database}: {len(done.migrations)} migrations"
        f" ({', '.join(done.migrations)}), server away for {done.downtime_s:.1f} s\n"
        f"steps per rank: {before} before, {old_node} with the old node, {new_node} with the new node;"
        f" {done.steps[-1]} stored, each once\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
