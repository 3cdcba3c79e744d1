"""Times of collective operations on the links of a cluster (s); ring algorithms of Thakur et al. 2005."""

from __future__ import annotations

from dataclasses import dataclass

from parlab.planner.calibration.recorded_formulas import larger, smaller
from parlab.planner.job.cluster import Cluster
from parlab.planner.job.workload import Job

from .dispatch import KERNELS, Kernels, sent_copies
from .parameters import TimeParameters

SENDING_SHARE = 0.12
"""Share of the multiprocessors that NCCL's kernels occupy: 16 channels on the 132 of an H100."""


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

    def exchange(self, kernels: Kernels) -> float:
        """Return the bandwidth of a device in an exchange of tokens inside its domain (bytes/s)."""
        link = self.cluster.inside
        rate = smaller(link.bandwidth * kernels.inside, kernels.most)
        return link.exchange or rate * self.parameters.exchange_efficiency

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

    def dispatch_s(self, job: Job, tokens: float) -> float:
        """Return the time in which each expert parallel rank sends `tokens` tokens to the ranks of their experts.

        The rank that receives most takes longest. Devices in the same domain as the ranks share its network.
        """
        ranks, span = job.expert_parallel, job.expert_parallel * job.expert_tensor_parallel
        if ranks == 1:
            return 0.0
        cluster, kernels = self.cluster, KERNELS[job.dispatcher]
        size = float(job.value_bytes * job.model.hidden_size) * tokens * job.busiest_share
        inside_s = size * sent_copies(job, ranks) / self.exchange(kernels) + cluster.inside.latency_s
        if not self.is_between(span):
            return inside_s
        domains = min(ranks, -(-span // cluster.domain))
        between = self.between_bandwidth(span) / cluster.gpus_per_node * self.between_share(kernels.between)
        return larger(inside_s, size * sent_copies(job, domains) / between) + cluster.between.latency_s
