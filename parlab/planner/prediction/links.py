"""Times of collective operations on the links of a cluster (s); ring algorithms of Thakur et al. 2005."""

from __future__ import annotations

from dataclasses import dataclass

from parlab.planner.calibration.recorded_formulas import larger, smaller
from parlab.planner.job.cluster import Cluster

from .parameters import TimeParameters

_EXCHANGE_BETWEEN = 0.9
"""Share of the bandwidth between nodes that kernels for the all-to-all of experts reach: 43 to 58 of 50 GB/s of an H800
among 16 to 64 ranks (DeepEP, README, 2025, normal kernels)."""


@dataclass(frozen=True)
class Links:
    """The links of a cluster at the efficiencies of a calibration."""

    cluster: Cluster
    parameters: TimeParameters

    @property
    def inside(self) -> float:
        """Bandwidth of a device inside its domain (bytes/s)."""
        link = self.cluster.inside
        return link.bandwidth if link.is_measured else link.bandwidth * self.parameters.inside_efficiency

    @property
    def exchange(self) -> float:
        """Bandwidth of a device in an all-to-all inside its domain (bytes/s)."""
        link = self.cluster.inside
        return link.exchange or link.bandwidth * self.parameters.exchange_efficiency

    def is_between(self, span: int) -> bool:
        """Return whether a group of neighbouring devices spans several domains."""
        return span > self.cluster.domain and self.cluster.domains > 1

    def between_share(self, efficiency: float) -> float:
        """Return the share of the bandwidth between nodes that messages reach."""
        return self.parameters.shaped_efficiency if self.cluster.between.is_measured else efficiency

    def between_bandwidth(self, span: int) -> float:
        """Return the bandwidth of a node for messages of groups that span so many neighbouring devices (bytes/s).

        Groups that share a leaf switch have the full bandwidth; above, links between switches may be oversubscribed.
        """
        cluster = self.cluster
        shares_leaf = span <= cluster.leaf_nodes * cluster.gpus_per_node
        return cluster.between.bandwidth / (1.0 if shares_leaf else cluster.oversubscription)

    def ring(self, ranks: int, span: int) -> tuple[float, float]:
        """Return bandwidth (bytes/s) and latency per hop (s) of a ring of ranks on `span` neighbouring devices."""
        cluster = self.cluster
        if not self.is_between(span):
            return self.inside, cluster.inside.latency_s
        members = max(1, min(cluster.domain, cluster.domain * ranks // span))
        rings = cluster.domain / members
        domain_bandwidth = self.between_bandwidth(span) * cluster.domain / cluster.gpus_per_node
        between = domain_bandwidth * self.between_share(self.parameters.between_efficiency) / rings
        nodes = max(1, ranks // members)
        latency = cluster.between.latency_s * nodes / ranks + cluster.inside.latency_s
        return smaller(self.inside, between), latency

    def all_reduce_s(self, size: float, ranks: int, span: int, messages: int = 1) -> float:
        """Return the time of an all-reduce of `size` bytes among ranks spread over `span` neighbouring devices.

        Inside a domain it is a ring. Between domains, NCCL's trees reduce inside each domain first, so that the network
        carries 2 (N - 1)/N of the data for N domains, which is only half as much for two of them.
        """
        bandwidth, latency = self.ring(ranks, span)
        share = (ranks - 1) / ranks
        if self.is_between(span):
            domains = max(2, min(ranks, -(-span // self.cluster.domain)))
            share = (domains - 1) / domains
        return 2 * share * size / bandwidth + 2 * (ranks - 1) * latency * messages

    def all_to_all_s(self, token_bytes: float, tokens: float, choices: int, ranks: int, span: int) -> float:
        """Return the time in which each rank sends `tokens` tokens to the ranks of their experts.

        A token goes once to each rank that has one of its `choices` experts, and once to each other domain
        (DeepSeek-V3 report 2024, section 3.2.2). `span` neighbouring devices contain all ranks.
        """
        if ranks == 1:
            return 0.0
        cluster = self.cluster
        copies = _distinct(ranks, choices) * (ranks - 1) / ranks
        inside_s = tokens * copies * token_bytes / self.exchange + cluster.inside.latency_s
        if not self.is_between(span):
            return inside_s
        domains = min(ranks, -(-span // cluster.domain))
        sent = _distinct(domains, choices) * (domains - 1) / domains
        between = self.between_bandwidth(span) / cluster.gpus_per_node * self.between_share(_EXCHANGE_BETWEEN)
        return larger(inside_s, tokens * sent * token_bytes / between) + cluster.between.latency_s


def _distinct(groups: int, choices: int) -> float:
    """Return the expected number of distinct groups among random choices."""
    return float(groups * (1 - (1 - 1 / groups) ** choices))
