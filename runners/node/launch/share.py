"""The share of one node in a run: its place among the nodes, and where their ranks meet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple, Self

LOOPBACK = "127.0.0.1"
VARIABLE = "PARLAB_SHARE"
"""Variable with the share of this node, for the programs that start its ranks; absent if a run has one node."""
HOSTFILE = "hostfile"
"""Name of the file beside the configuration that lists the nodes of a run."""


class Share(NamedTuple):
    """Place of a node among the nodes of a run."""

    node_rank: int = 0
    nodes: int = 1
    address: str = LOOPBACK
    """Address of this node for the other nodes."""
    interface: str = ""
    """Network interface with this address; empty: not known."""
    addresses: tuple[str, ...] = (LOOPBACK,)
    """Addresses of all nodes in the order of their node_rank; the ranks meet at the first."""
    port: int = 0
    """Port at which the ranks meet; 0: the launcher looks for a free one."""

    @property
    def master_address(self) -> str:
        """Address at which the ranks meet."""
        return self.addresses[0]

    def to_environment(self) -> dict[str, str]:
        """Return the variable that passes the share on; nothing for a run on one node."""
        return {VARIABLE: json.dumps(self._asdict(), separators=(",", ":"))} if self.nodes > 1 else {}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the share from the environment; without the variable the run has one node."""
        text = environment.get(VARIABLE, "")
        if not text:
            return cls()
        fields = json.loads(text)
        return cls(**{**fields, "addresses": tuple(fields["addresses"])})


ALONE = Share()
"""The share of the only node of a run."""


def hostfile(share: Share, ranks_per_node: int) -> str:
    """Return the nodes as DeepSpeed reads them: one line per node with its address and number of ranks."""
    return "".join(f"{address} slots={ranks_per_node}\n" for address in share.addresses)
