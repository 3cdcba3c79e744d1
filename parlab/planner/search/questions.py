"""Answer sizing questions: the largest model, the fewest nodes, days by number of nodes, and a deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from parlab.planner.calibration.calibration import Calibration, default_for
from parlab.planner.job.cluster import Cluster, with_gpus
from parlab.planner.job.practice import in_units_of
from parlab.planner.job.workload import Job, Model
from parlab.planner.prediction.fitting import is_confident

from .budget import Budget, budget
from .candidates import OverlapOf, families
from .layouts import Layout, search

_WIDTH_PER_LAYER = 128
"""Hidden size per layer in GPT-3's proportions: its 96 layers are 12,288 wide."""
_HEAD_SIZE = 128
_MOST_LAYERS = 512
MOST_NODES = 4096


@dataclass(frozen=True)
class Size:
    """The best layout on a number of nodes and its budget; None if no layout fits."""

    nodes: int
    layout: Layout | None
    budget: Budget | None


@dataclass(frozen=True)
class Verdict:
    """Whether a number of nodes meets a deadline, with an explanation."""

    is_enough: bool
    sentence: str


def fits_somehow(job: Job, cluster: Cluster, calibration: Calibration | None = None) -> bool:
    """Return whether any layout surely fits with full recomputation; a batch that divides replaces the job's."""
    constants = calibration or default_for(cluster)
    divisible = replace(in_units_of(job, cluster.device), global_batch_size=cluster.gpus)
    return any(
        is_confident(replace(layout, recompute="full", recomputed_layers=None), cluster, constants)
        for layout in (family[0] for family in families(divisible, cluster) if family[0].schedule == "1f1b")
    )


def family(layers: int, model: Model) -> Model:
    """Return a GPT in the proportions of GPT-3, with the sequence length and vocabulary of `model`."""
    hidden = _WIDTH_PER_LAYER * layers
    return Model(
        layers, hidden, hidden // _HEAD_SIZE, model.sequence_length, model.vocab_size, is_causal=model.is_causal
    )


def largest_model(job: Job, cluster: Cluster, calibration: Calibration | None = None) -> Model | None:
    """Return the largest GPT in the proportions of GPT-3 that fits on a cluster; None if not even two layers fit.

    The bisection covers even numbers of layers, since odd ones have few layouts.
    """
    plain = replace(job, expert_parallel=1, expert_tensor_parallel=1, first_stage_layers=None, last_stage_layers=None)
    low, high = 0, _MOST_LAYERS // 2
    while high - low > 1:
        middle = (low + high) // 2
        if fits_somehow(replace(plain, model=family(2 * middle, job.model)), cluster, calibration):
            low = middle
        else:
            high = middle
    return family(2 * low, job.model) if low else None


def fewest_nodes(job: Job, cluster: Cluster, calibration: Calibration | None = None) -> int | None:
    """Return the fewest nodes on which a layout of the model fits; None if MOST_NODES are too few."""
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
    overlap: OverlapOf | None = None,
) -> list[Size]:
    """Return the best layout of the job and its budget for each number of nodes.

    A number of nodes has no layout if nothing fits or the global batch does not divide over the replicas.
    """
    sizes = []
    for nodes in node_counts:
        layouts = search(job, with_gpus(cluster, nodes * cluster.gpus_per_node), calibration, overlap, 1).fitting
        best = layouts[0] if layouts else None
        sizes.append(Size(nodes, best, budget(best.prediction, tokens, price_per_gpu_hour) if best else None))
    return sizes


def node_counts(around: int, fewest: int, most: int = MOST_NODES) -> list[int]:
    """Return numbers of nodes to compare: powers of two from `fewest` to 8 times `around`, and both of these."""
    counts = {fewest, around}
    number = 1
    while number <= min(most, 8 * around):
        if number >= fewest:
            counts.add(number)
        number *= 2
    return sorted(counts)


def verdict(size: Size, wanted_days: float, sizes: Sequence[Size]) -> Verdict:
    """Decide whether a number of nodes meets a deadline, and name the smallest number that does.

    Raises ValueError for a deadline out of range.
    """
    if not 0 < wanted_days <= 1e5:
        raise ValueError(f"wanted_days {wanted_days:g} is out of range; use more than 0 and at most 100000")
    sufficient = [other for other in sizes if other.budget and other.budget.days_high <= wanted_days]
    least = min(sufficient, key=lambda other: other.nodes) if sufficient else None
    remedy = (
        f"{_nodes(least.nodes)} would take {least.budget.days:.3g} days"
        if least and least.budget
        else "none of the compared numbers of nodes suffices: train on fewer tokens or a smaller model"
    )
    if size.budget is None:
        return Verdict(False, f"Too few: the model does not fit on {_nodes(size.nodes)}; {remedy}.")
    days, low, high = size.budget.days, size.budget.days_low, size.budget.days_high
    duration = f"training takes {days:.3g} days ({low:.3g} to {high:.3g}) on {_nodes(size.nodes)} in the best layout"
    if high <= wanted_days:
        return Verdict(True, f"Enough: {duration}, within {wanted_days:g} days.")
    if low <= wanted_days:
        return Verdict(False, f"Uncertain: {duration}, about {wanted_days:g} days; {remedy}.")
    return Verdict(False, f"Too few: {duration}, more than {wanted_days:g} days; {remedy}.")


def _nodes(number: int) -> str:
    return f"{number} node" if number == 1 else f"{number} nodes"
