"""What a pod gets that shares no volume with its controller: a Secret with its order and the key of its attempt.

/parlab/order/order.json   the files of the run, the address of the server and the key; one Secret for all pods of a run
/parlab/word/word          what the controller tells the pod later: an annotation of the pod, through the downward API
/parlab/end                what the pod leaves when it has ended: its termination message
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runners.node.jobs.state import JobDir
from runners.node.kubernetes.pods import COMMANDS_FILE
from runners.node.rundir import RunDir, directory_name, write_atomically
from runners.supervisor.spool import SpoolWriter
from runners.wire.trust import Key

PLACE = Path("/parlab/order")
FILE = "order.json"
WORD_PLACE = Path("/parlab/word")
WORD_FILE = "word"
END_FILE = "/parlab/end"


class Server(NamedTuple):
    """Where a pod ships its records, and the key that is good for its attempt alone."""

    url: str
    node: str
    """Name of the controller, on whose behalf it signs."""
    key: Key


class PodOrder(NamedTuple):
    state_id: str
    spec: Mapping[str, Any]
    config: Mapping[str, Any]
    launches: Sequence[Mapping[str, Any]]
    """The launch file of each pod; of all but the first only what differs."""
    url: str
    node: str
    key_id: str
    secret: str
    rest_s: float
    """Time for the server to take what is left when a pod ends."""
    commands: Sequence[Sequence[str]] = ()
    """Beginnings of the commands that the run may start."""

    def server_of(self, run: RunDir) -> Server:
        """Return where a run ships its records."""
        return Server(self.url, self.node, Key(self.key_id, bytes.fromhex(self.secret)))


def order_text(runs: Sequence[JobDir], order: PodOrder) -> str:
    """Return the content of the Secret: `order` with the files of the runs."""
    launches = [run.read_launch() for run in sorted(runs, key=lambda run: run.node_rank)]
    first = launches[0]
    rest = [{name: value for name, value in each.items() if first.get(name) != value} for each in launches[1:]]
    files = {"spec": json.loads(runs[0].spec.read_text()), "config": json.loads(runs[0].config.read_text())}
    return json.dumps(order._replace(**files, launches=[first, *rest])._asdict())


def read_order(place: Path = PLACE) -> PodOrder:
    return PodOrder(**json.loads((place / FILE).read_text()))


def run_of(first: RunDir, node_rank: int) -> RunDir:
    """Return the directory of a member from that of node_rank 0."""
    return RunDir(first.path.with_name(directory_name(first.run, first.attempt, node_rank)))


def write_run(order: PodOrder, run: RunDir) -> None:
    """Write the files of a run where a shared volume would have them."""
    root, node_rank = run.path.parent.parent, run.node_rank
    run.path.mkdir(parents=True, mode=0o700)
    write_atomically(root / "id", order.state_id)
    if order.commands:
        write_atomically(root / COMMANDS_FILE, json.dumps(order.commands))
    write_atomically(run.spec, json.dumps({**order.spec, "node_rank": node_rank}))
    write_atomically(run.config, json.dumps(order.config))
    with SpoolWriter(run.spool) as writer:
        writer.reserve()
    run.write_launch({**order.launches[0], **(order.launches[node_rank] if node_rank else {})})
