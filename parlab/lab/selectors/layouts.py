"""Which node of a run has which ranks."""

from __future__ import annotations

from typing import NamedTuple

from parlab.lab.models import Attempt, Run


class RankLayout(NamedTuple):
    """Ranks of an attempt and its nodes; every node has the same number of ranks, in the order of the nodes."""

    nodes: tuple[str, ...]
    """Names of the nodes by node rank."""
    ranks: int
    """Number of ranks; 0 if unknown."""

    @property
    def ranks_per_node(self) -> int:
        return max(1, self.ranks // max(1, len(self.nodes)))

    def node_rank_of(self, rank: int) -> int:
        return min(max(0, rank) // self.ranks_per_node, max(0, len(self.nodes) - 1))

    def node_of(self, rank: int) -> str:
        """Return the name of the node that has a rank, empty if it is unknown."""
        return self.nodes[self.node_rank_of(rank)] if self.nodes else ""

    def ranks_of(self, node_rank: int) -> range:
        return range(node_rank * self.ranks_per_node, (node_rank + 1) * self.ranks_per_node)

    def place_of(self, rank: int) -> str:
        """Name a rank, and its node if the run has several: `rank 5 on node b`."""
        return f"rank {rank} on node {self.node_of(rank)}" if len(self.nodes) > 1 else f"rank {rank}"


def rank_layout(run: Run, attempt: Attempt) -> RankLayout:
    cluster = run.resolved.get("cluster") or {}
    nodes, each = cluster.get("nodes"), cluster.get("gpus_per_node")
    ranks = int(nodes) * int(each) if nodes and each else 0
    return RankLayout(tuple(member.node_name for member in attempt.members.all()), ranks)
