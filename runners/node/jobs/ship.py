"""On a compute node: `python -m runners.node.jobs.ship RUN_DIR` ships the output of one run from here.

It runs where the node reaches the Redis of its login node, beside the supervisor and independent of it, until its
standard input is closed. The login node takes over when it ends for any reason. If both ship for a moment, nothing is
doubled: the server stores a batch only if it continues what is stored.
"""

from __future__ import annotations

import sys

from runners.node.jobs.reach import REDIS
from runners.node.jobs.shipper import NodeShipper, ship_beside_supervisor
from runners.node.jobs.state import BrokerKeys, JobDir, JobStateDir
from runners.wire.broker import Broker


def shipper(run: JobDir) -> NodeShipper | None:
    """Return the shipper of a run; None if the login node ships."""
    state = JobStateDir(run.path.parent.parent)
    settings = state.read_broker()
    if settings is None:
        return None
    broker = Broker(settings["url"], settings["node"], BrokerKeys(state))
    return NodeShipper(run, broker, settings["node"])


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    return ship_beside_supervisor(arguments, REDIS.module, __doc__ or "", shipper)


if __name__ == "__main__":
    sys.exit(main())
