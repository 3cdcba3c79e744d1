"""The exchange of tokens with the ranks of their experts, by the library that sends them.

Sources: DeepEP, README, 2025 (H800, B200: normal kernels, bf16 combine); Hybrid-EP, implementation notes, 2026 (B200,
GB200: 8 to 36 ranks; H100: 16 to 64 ranks); Megatron-Core's token dispatchers `allgather`, `alltoall` and `flex`.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb, inf
from typing import NamedTuple

from parlab.planner.job.workload import Dispatcher, Job


class Kernels(NamedTuple):
    """How a dispatcher sends tokens, and what it reaches."""

    inside: float
    """Share of a link inside a domain that it reaches."""
    most: float
    """Bytes/s that its multiprocessors move at most."""
    between: float
    """Share of the bandwidth between nodes that it reaches."""
    has_copies: bool
    """A token is sent once to each of its experts, instead of once to each rank and domain that has one of them."""
    waits: bool
    """The processor waits for the numbers of tokens before it launches the experts."""
    moved_bytes: float
    """Bytes per value of a routed token that sorting it by its expert moves on its rank, forward and back."""
    multiprocessors: float
    """Share of the multiprocessors that it occupies."""


KERNELS: dict[Dispatcher, Kernels] = {
    "allgather": Kernels(1.0, inf, 0.8, True, True, 8.0, 0.15),
    "alltoall": Kernels(0.8, inf, 0.8, True, True, 16.0, 0.15),
    "deepep": Kernels(0.78, 390e9, 0.9, False, True, 8.0, 0.15),
    "hybridep": Kernels(0.68, inf, 0.8, False, False, 4.0, 0.08),
}
"""NCCL's all-to-all sorts copies of the tokens before and after it; DeepEP sorts what arrives; Hybrid-EP does while it
receives. DeepEP: 153 of 200 GB/s with 20 of 132 multiprocessors (H800), 325 and 457 of 900 with 16 and 24 of 148 (B200,
mean of dispatch and combine; Megatron-Core uses 20); between nodes 51 of 50 GB/s at 64 ranks, of which an eighth stays
in the node. Hybrid-EP: kernels 600 to 660 of 900 GB/s at 16 to 36 ranks (GB200), between nodes 46 of 50 at 64 ranks."""


@lru_cache(1024)
def distinct(parts: float, choices: int, groups: int = 1, limit: int | None = None) -> float:
    """Return the expected number of parts that hold one of a token's `choices`, which are random.

    The experts are divided evenly into `parts` (ranks or domains), and into `groups`, of which a token may use `limit`
    (DeepSeek-V3 report 2024, section 2.1.2: node-limited routing).
    """
    if limit is None or limit >= groups:
        return _hit(parts, choices)
    if parts >= groups:
        return _hit(limit * parts / groups, choices)
    each = round(groups / parts)
    missed = sum(
        comb(each, own) * comb(groups - each, limit - own) * (1 - own / limit) ** choices
        for own in range(min(each, limit) + 1)
    )
    return parts * (1 - missed / comb(groups, limit))


def _hit(parts: float, choices: int) -> float:
    return float(parts * (1 - (1 - 1 / parts) ** choices))


def sent_copies(job: Job, parts: float) -> float:
    """Return how often a token is sent to another of `parts` ranks or domains."""
    model, kernels = job.model, KERNELS[job.dispatcher]
    away = (parts - 1) / parts
    if job.dispatcher == "allgather":
        return parts - 1
    if kernels.has_copies:
        return model.experts_per_token * away
    return distinct(parts, model.experts_per_token, model.expert_groups, model.groups_per_token) * away
