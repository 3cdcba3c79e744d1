"""Days against cost: the best layouts of a training on several numbers of several devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from parlab.planner.calibration.calibration import Calibration
from parlab.planner.job.hardware import Gpu
from parlab.planner.requests.request import PlanRequest

from .budget import Budget, budget
from .layouts import Layout, search

_AROUND = 4.0
"""How much shorter or longer than the deadline the trainings of a frontier take, as a factor."""
_MOST_NODES = 8192
_MOST_SIZES = 6
_USUAL_SHARE = 0.4
"""Share of the peak at which an ordinary training runs, for the number of nodes that a search begins with."""
_USUAL_DAYS = 60.0
SURE = 0.8
"""Probability from which on a plan is said to keep a limit."""


class Offer(NamedTuple):
    """A device, and the price of one for an hour; None: unknown."""

    gpu: Gpu
    per_hour: float | None


class Choice(NamedTuple):
    """The best layout of a training on a number of devices of one kind."""

    device: str
    gpus: int
    layout: Layout
    budget: Budget

    @property
    def fits_probability(self) -> float:
        return self.layout.prediction.fits_probability


def choices(
    request: PlanRequest, offers: Sequence[Offer], days: float, calibration: Calibration | None = None
) -> list[Choice]:
    """Return the trainings that take about `days` on each device, most nodes first: powers of two, and the request's.

    The calibration counts for the first device, which is that of the request. A number of nodes without a layout that
    fits and divides the global batch is left out.
    """
    found = []
    for number, offer in enumerate(offers):
        own = request.nodes if number == 0 else None
        found += _undominated(_of_device(request, offer, days, calibration if number == 0 else None, own), own)
    return found


def _undominated(found: Iterable[Choice], own: int | None) -> list[Choice]:
    """Leave out trainings that are slower and take more GPU hours than another; that of the request stays."""
    every = list(found)
    return [
        each
        for each in every
        if each.layout.prediction.cluster.nodes == own
        or not any(
            other.budget.days <= each.budget.days and other.budget.gpu_hours < each.budget.gpu_hours for other in every
        )
    ]


def _of_device(
    request: PlanRequest, offer: Offer, days: float, calibration: Calibration | None, own: int | None
) -> Iterator[Choice]:
    best: Layout | None = None
    sizes = node_counts(request, offer.gpu, days)
    for nodes in sorted({*sizes, *([own] if own else [])}, reverse=True):
        # The network of the request belongs to its own device.
        moved = {} if own else {"network_gbit_s": None, "link_gb_s": None, "memory_gib": None, "gpu": offer.gpu.name}
        question = request.model_copy(update={"nodes": nodes, **moved})
        near = best.job if best is not None else None
        found = search(question.job(), question.cluster(offer.gpu), calibration, question.overlap, 1, near=near)
        if not found.fitting and near is not None:
            found = search(question.job(), question.cluster(offer.gpu), calibration, question.overlap, 1)
        if not found.fitting:
            continue
        best = found.fitting[0]
        result = budget(best.prediction, request.tokens_billion * 1e9, offer.per_hour)
        if nodes == own or days / _AROUND <= result.days <= days * _AROUND:
            yield Choice(offer.gpu.name, question.gpus, best, result)


def node_counts(request: PlanRequest, gpu: Gpu, days: float) -> list[int]:
    """Return powers of two with which an ordinary training takes `days`, half and twice as long, and so on."""
    peak = gpu.peak(request.precision) or gpu.peak("bf16") or gpu.peak("fp32")
    if peak is None:
        return []
    flops = 6 * request.tokens_billion * 1e9 * request.job().model.active_parameters
    needed = flops / (_USUAL_SHARE * peak.flops_per_s * days * 86_400 * request.gpus_per_node)
    low, high = needed / _AROUND, needed * _AROUND
    fitting = [2**power for power in range(14) if low / 1.5 <= 2**power <= min(high * 1.5, _MOST_NODES)]
    return fitting[:_MOST_SIZES] or [1]


def meeting(found: Sequence[Choice], days: float | None, cost: float | None) -> list[Choice]:
    """Return for each device the training that keeps the limits on the fewest GPUs, most probable first."""
    least: dict[str, Choice] = {}
    for choice in sorted(found, key=lambda choice: choice.gpus):
        if keeps(choice.budget, days, cost) >= SURE:
            least.setdefault(choice.device, choice)
    return list(least.values())


def keeps(result: Budget, days: float | None, cost: float | None) -> float:
    """Return the probability that a training keeps a deadline and a limit of its cost; both follow from its time."""
    of_cost = result.cost_chance(cost) if cost is not None else 1.0
    return min(1.0 if days is None else result.chance(days), 0.0 if of_cost is None else of_cost)


def enough(request: PlanRequest, gpu: Gpu) -> Choice | None:
    """Return the training on as many GPUs as its limit asks for; None if no layout fits.

    With a deadline these are the fewest that keep it, with a limit of the cost the most; if none does, those that are
    most likely to.
    """
    days = request.wanted_days or _USUAL_DAYS
    found = choices(request, [Offer(gpu, request.price)], days)
    if not found:
        return None
    sure = [each for each in found if keeps(each.budget, request.wanted_days, request.wanted_cost) >= SURE]
    if not sure:
        return max(found, key=lambda each: keeps(each.budget, request.wanted_days, request.wanted_cost))
    most_first = request.wanted_cost is not None
    return (max if most_first else min)(sure, key=lambda each: each.gpus)
