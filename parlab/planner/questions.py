"""What people ask before a large training: what fits, on how few nodes, for how many days, whether it is too few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .budget import Budget, budget
from .calibration import Calibration, default_for
from .cluster import Cluster, with_gpus
from .layouts import Layout, candidates, search
from .memory import memory
from .workload import Job, Model

_WIDTH_PER_LAYER = 128
"""Width of a family of GPTs over their layers: GPT-3's 96 layers are 12,288 wide."""
_HEAD = 128
_MOST_LAYERS = 512
MOST_NODES = 4096


@dataclass(frozen=True)
class Size:
    """A training on so many nodes: its best layout and what the budget takes; None where nothing fits."""

    nodes: int
    layout: Layout | None
    budget: Budget | None


@dataclass(frozen=True)
class Verdict:
    """Whether nodes are too few for a deadline, in words."""

    is_enough: bool
    sentence: str


def fits_somehow(job: Job, cluster: Cluster, calibration: Calibration | None = None) -> bool:
    """Whether any layout fits, all recomputed; a batch is made to divide."""
    known = calibration or default_for(cluster)
    room = cluster.device.memory_bytes * known.usable_share
    whole = replace(job, global_batch_size=cluster.gpus)
    return any(
        memory(replace(one, recompute="full"), known.memory).total_bytes <= room for one in candidates(whole, cluster)
    )


def family(layers: int, like: Model) -> Model:
    """A GPT of so many layers in the proportions of GPT-3, with the sequence and vocabulary of another."""
    hidden = _WIDTH_PER_LAYER * layers
    return Model(layers, hidden, hidden // _HEAD, like.sequence_length, like.vocab_size, is_causal=like.is_causal)


def largest_model(job: Job, cluster: Cluster, calibration: Calibration | None = None) -> Model | None:
    """The largest GPT in the proportions of GPT-3 that trains on a cluster; None where not even one layer does.

    Bisection over layers of even number, since an odd one divides badly.
    """
    low, high = 0, _MOST_LAYERS // 2
    while high - low > 1:
        middle = (low + high) // 2
        if fits_somehow(replace(job, model=family(2 * middle, job.model)), cluster, calibration):
            low = middle
        else:
            high = middle
    return family(2 * low, job.model) if low else None


def fewest_nodes(job: Job, cluster: Cluster, calibration: Calibration | None = None) -> int | None:
    """The fewest nodes on which any layout of the model fits, up to MOST_NODES; None where these do not suffice."""
    nodes = 1
    while nodes <= MOST_NODES:
        if fits_somehow(job, with_gpus(cluster, nodes * cluster.gpus_per_node), calibration):
            break
        nodes *= 2
    else:
        return None
    low = nodes // 2
    while nodes - low > 1:
        middle = (nodes + low) // 2
        if fits_somehow(job, with_gpus(cluster, middle * cluster.gpus_per_node), calibration):
            nodes = middle
        else:
            low = middle
    return nodes


def trade_off(
    job: Job,
    cluster: Cluster,
    node_counts: Sequence[int],
    tokens: float,
    price_per_gpu_hour: float | None = None,
    calibration: Calibration | None = None,
) -> list[Size]:
    """Nodes against training time: the best layout of the job on each number of nodes.

    Where the batch does not divide over the replicas, the number of nodes has no layout.
    """
    sizes = []
    for nodes in node_counts:
        found = search(job, with_gpus(cluster, nodes * cluster.gpus_per_node), calibration).fitting
        best = found[0] if found else None
        taken = budget(best.prediction, tokens, price_per_gpu_hour) if best else None
        sizes.append(Size(nodes, best, taken))
    return sizes


def node_counts(around: int, fewest: int, most: int = MOST_NODES) -> list[int]:
    """Numbers of nodes to compare: powers of two from the fewest to eight times what is there, and both ends."""
    counts = {fewest, around}
    number = 1
    while number <= min(most, 8 * around):
        if number >= fewest:
            counts.add(number)
        number *= 2
    return sorted(counts)


def verdict(size: Size, wanted_days: float, sizes: Sequence[Size]) -> Verdict:
    """Say whether a number of nodes is too few for a deadline, and how many would do."""
    if not 0 < wanted_days <= 1e5:
        raise ValueError(f"wanted_days {wanted_days:g} is no deadline; use more than 0 and at most 100000")
    enough = [one for one in sizes if one.budget and one.budget.days_high <= wanted_days]
    least = min(enough, key=lambda one: one.nodes) if enough else None
    remedy = (
        f"{least.nodes} nodes take {least.budget.days:.3g} days"
        if least and least.budget
        else "none of the numbers compared is enough: train fewer tokens or a smaller model"
    )
    if size.budget is None:
        return Verdict(False, f"Too few: the model does not train on {_nodes(size.nodes)}; {remedy}.")
    days = size.budget
    span = f"{days.days:.3g} days ({days.days_low:.3g} to {days.days_high:.3g})"
    if days.days_high <= wanted_days:
        return Verdict(
            True, f"Enough: {_nodes(size.nodes)} take {span} in the best layout, within {wanted_days:g} days."
        )
    if days.days_low <= wanted_days:
        return Verdict(
            False,
            f"Uncertain: {_nodes(size.nodes)} take {span} in the best layout, around {wanted_days:g} days; {remedy}.",
        )
    return Verdict(
        False, f"Too few: {_nodes(size.nodes)} take {span} in the best layout, more than {wanted_days:g}; {remedy}."
    )


def _nodes(number: int) -> str:
    return f"{number} node" if number == 1 else f"{number} nodes"
