"""A chain in a real Slurm: its login node, and which jobs were queued ahead."""

from __future__ import annotations

import json
from pathlib import Path

from django.conf import settings

from parlab.lab.models import Node, Run
from tests.chains.world import World, command
from tests.fleet.workers import Workers
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import LoginNode


class SlurmWorld(World):
    """A world that notes which jobs were queued ahead."""

    def __init__(self, workers: Workers, login: LoginNode) -> None:
        super().__init__(workers, [login])
        self.login = login
        self.ahead = set[int]()
        """Attempts that were in Slurm's queue before the server sent them."""
        self.workers.until(
            lambda: any(_partitions(node) for node in Node.objects.all()), "the login node is registered"
        )

    def look(self) -> None:
        super().look()
        self.ahead |= {attempt for (_, attempt), record in self.login.state.ahead().items() if record.read().get("id")}


def _partitions(node: Node) -> bool:
    return bool((node.hardware.get("slurm") or {}).get("partitions"))


def login_node(root: Path, url: str, cluster: Cluster) -> LoginNode:
    """Return a login node of pool hpc that allows the script; all nodes see the directory of its checkpoints."""
    machine = LoginNode(root, url, cluster)
    allowed = machine.scripts / "allowed.json"
    allowed.write_text(json.dumps([command()]))
    machine.environment |= {
        "TEST_SCRIPTS": "",
        "PARLAB_NODE_KEY": settings.NODE_KEY.decode(),
        "PARLAB_ALLOWED_COMMANDS": str(allowed),
        "PARLAB_CHECKPOINT_DIR": str(machine.scripts / "checkpoint"),
    }
    machine.options = ("--pool", "hpc", "--slots", "2")
    return machine


def preempt(world: SlurmWorld, run: Run) -> int:
    """Take the node of the current attempt away with a job of higher priority; return the job."""
    attempt = run.current_attempt()
    options = ("--partition=urgent", f"--nodelist={attempt.environment['slurm']['node']}", "--exclusive")
    return int(world.login.cluster.run("sbatch", "--parsable", *options, "--output=/dev/null", "--wrap=sleep 600"))
