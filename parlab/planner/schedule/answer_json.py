"""The answer of a simulation as JSON, for the API and `manage.py simulate`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from .choice import Outcome
from .scenario import Answer, Refusal, Scenario, answer, code_of


class _Part(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class WrittenPass(_Part):
    """One pass of one micro batch."""

    rank: int
    kind: str
    """F: forward; B: backward; I and W: its two parts, input gradients and weight gradients."""
    micro_batch: int
    chunk: int
    begin_s: float
    end_s: float


class WrittenTransfer(_Part):
    """One message on the outgoing link of a rank."""

    kind: str
    """activations or gradients."""
    micro_batch: int
    source: int
    target: int
    begin_s: float
    left_s: float
    """Time at which the last bit has left."""
    arrival_s: float


class WrittenOutcome(_Part):
    """One schedule on the network."""

    schedule: str
    """In the notation of `schedules` in the request."""
    iteration_s: float
    bound_s: float
    """Lower bound over all orders of the same passes; only zb-h1 divides backward passes."""
    bound_by: str
    gap_to_bound_pct: float
    bubble_fractions: list[float]
    """Share of the iteration in which each rank is idle."""
    micro_batches_held: list[int]
    """Largest number of micro batches in flight by rank; each chunk counts separately."""
    passes: list[WrittenPass] | None = None
    transfers: list[WrittenTransfer] | None = None


class WrittenRefusal(_Part):
    """A schedule that does not support these sizes."""

    schedule: str
    message: str


class WrittenAnswer(_Part):
    """All schedules of a request."""

    outcomes: list[WrittenOutcome]
    refused: list[WrittenRefusal]
    bound_s: float | None = None
    """Lower bound of every schedule with as many chunks as one of the outcomes; none of them is faster."""
    bound_by: str = ""
    best: str | None = None
    """The schedule chosen for the network, if `schedules` contains `best`."""
    rule_slope: int | None = None
    """1 + 2c/t rounded up: the smallest warm-up slope that hides a round trip."""


def written(scenario: Scenario, *, with_timeline: bool = False) -> WrittenAnswer:
    """Simulate a scenario and return the answer; `with_timeline` adds every pass and message."""
    simulated: Answer = answer(scenario)
    return WrittenAnswer(
        outcomes=[_outcome(outcome, with_timeline) for outcome in simulated.outcomes],
        refused=[_refusal(refusal) for refusal in simulated.refused],
        bound_s=simulated.bound.seconds if simulated.bound else None,
        bound_by=simulated.bound.binds if simulated.bound else "",
        best=code_of(simulated.choice.best.plan) if simulated.choice else None,
        rule_slope=simulated.choice.rule_slope if simulated.choice else None,
    )


def _refusal(refusal: Refusal) -> WrittenRefusal:
    return WrittenRefusal(schedule=refusal.value, message=refusal.message)


def _outcome(outcome: Outcome, with_timeline: bool) -> WrittenOutcome:
    simulation = outcome.simulation
    return WrittenOutcome(
        schedule=code_of(outcome.plan),
        iteration_s=simulation.iteration_s,
        bound_s=outcome.bound.seconds,
        bound_by=outcome.bound.binds,
        gap_to_bound_pct=round(100 * outcome.gap_to_bound, 6),
        bubble_fractions=simulation.bubble_fractions,
        micro_batches_held=simulation.held,
        passes=[WrittenPass(rank=rank, **p._asdict()) for rank, passes in enumerate(simulation.passes) for p in passes]
        if with_timeline
        else None,
        transfers=[WrittenTransfer(**t._asdict()) for transfers in simulation.transfers for t in transfers]
        if with_timeline
        else None,
    )
