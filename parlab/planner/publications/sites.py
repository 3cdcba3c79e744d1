"""Clusters of published trainings whose rows do not describe the links."""

from __future__ import annotations

from typing import NamedTuple


class Site(NamedTuple):
    """The links of a cluster."""

    name: str
    link_gb_s: float
    """Bandwidth of a device inside its node, one direction (GB/s)."""
    network_gbit_s: float
    """Bandwidth of a node (Gbit/s)."""


SITES = {"tr11-176B": Site("A100 partition of Jean Zay", 100, 400)}
"""Text in the source of a row -> its cluster.

BLOOM (Le Scao et al. 2022), Hardware: four NVLink connections between GPUs, of 25 GB/s each on an A100, and four
Omni-Path links of 100 Gbit/s per node.
"""


def site_of(source: str) -> Site | None:
    """Return the cluster of a source; None if it is unknown."""
    return next((site for text, site in SITES.items() if text in source), None)
