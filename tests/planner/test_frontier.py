"""Days against cost: which numbers of GPUs are compared, and which keep a limit."""

from __future__ import annotations

import pytest

from parlab.planner.job.cluster import device
from parlab.planner.requests.answer import with_some_layout
from parlab.planner.search.budget import Budget
from parlab.planner.search.frontier import Offer, choices, enough, keeps, meeting
from parlab.planner.search.layouts import search

SMALL = with_some_layout(
    {"layers": 24, "hidden": 2048, "heads": 16, "global_batch": 256, "nodes": 2, "tokens_billion": 100}
)
OFFERS = [Offer(device("A100-80GB"), 2.0), Offer(device("H100"), 4.0)]


def budget_of(days: float, spread: float, cost: float | None) -> Budget:
    return Budget(1e9, 1e3, days, days / (1 + spread), days * (1 + spread), 1.0, cost)


def test_the_chance_of_a_limit_is_that_of_the_interval() -> None:
    result = budget_of(10, 0.25, 1e6)
    assert result.chance(10) == pytest.approx(0.5)
    assert result.chance(result.days_high) == pytest.approx(0.9, abs=1e-4)
    assert result.chance(result.days_low) == pytest.approx(0.1, abs=1e-4)
    assert result.cost_chance(1.25e6) == pytest.approx(0.9, abs=1e-4)
    assert budget_of(10, 0.25, None).cost_chance(1e6) is None
    assert budget_of(10, 0.25, 0.0).cost_chance(1.0) == 1


def test_both_limits_must_be_kept() -> None:
    result = budget_of(10, 0.25, 1e6)
    assert keeps(result, None, None) == 1
    assert keeps(result, 12.5, 1e6) == pytest.approx(0.5)
    assert keeps(budget_of(10, 0.25, None), None, 1e6) == 0


def test_each_choice_is_the_best_layout_on_its_gpus_and_none_is_beaten() -> None:
    found = choices(SMALL, OFFERS, 10.0)
    assert {choice.device for choice in found} == {offer.gpu.name for offer in OFFERS}
    for choice in found:
        offer = next(offer for offer in OFFERS if offer.gpu.name == choice.device)
        moved = SMALL.model_copy(update={"gpu": offer.gpu.name, "nodes": choice.gpus // SMALL.gpus_per_node})
        best = search(moved.job(), moved.cluster(offer.gpu), None, moved.overlap, 1).fitting[0]
        assert choice.budget.cost == pytest.approx(choice.budget.gpu_hours * (offer.per_hour or 0))
        assert choice.layout.prediction.iteration_s == pytest.approx(best.prediction.iteration_s, rel=0.01)
        assert choice.gpus == SMALL.gpus or 2.5 <= choice.budget.days <= 40
        others = [other for other in found if other.device == choice.device and other.gpus != choice.gpus]
        for other in others if choice.gpus != SMALL.gpus else []:
            assert other.budget.days > choice.budget.days or other.budget.gpu_hours >= choice.budget.gpu_hours


def test_the_fewest_gpus_that_keep_the_deadline_are_named_for_each_device() -> None:
    found = choices(SMALL, OFFERS, 10.0)
    for choice in meeting(found, 10.0, None):
        fewer = [other for other in found if other.device == choice.device and other.gpus < choice.gpus]
        assert choice.budget.chance(10.0) >= 0.8
        assert all(other.budget.chance(10.0) < 0.8 for other in fewer)


def test_a_deadline_takes_the_fewest_gpus_and_a_limit_of_the_cost_the_most() -> None:
    fewest = enough(SMALL.model_copy(update={"wanted_days": 10.0, "price": 2.0}), OFFERS[0].gpu)
    assert fewest is not None
    assert fewest.budget.chance(10.0) >= 0.8
    assert fewest.budget.cost
    paid = SMALL.model_copy(update={"wanted_cost": 2 * fewest.budget.cost, "price": 2.0})
    most = enough(paid, OFFERS[0].gpu)
    assert most is not None
    assert most.budget.cost_chance(2 * fewest.budget.cost) is not None
    assert most.budget.days <= fewest.budget.days
