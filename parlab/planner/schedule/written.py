"""What a simulation answers, as JSON: for the API and `manage.py simulate`."""

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
    """F forward, B backward; I and W its halves: gradient of the input, gradient of the weights."""
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
    """When its last bit has left."""
    arrival_s: float


class WrittenOutcome(_Part):
    """One schedule on the network."""

    schedule: str
    """As `schedules` of the question names it."""
    iteration_s: float
    bound_s: float
    """What no order of the same passes can beat."""
    bound_by: str
    gap_to_bound_pct: float
    bubble_fractions: list[float]
    """By rank: the share of the iteration in which it does not compute."""
    micro_batches_held: list[int]
    """By rank, those of each chunk counted apart."""
    passes: list[WrittenPass] | None = None
    transfers: list[WrittenTransfer] | None = None


class WrittenRefusal(_Part):
    """A schedule that these sizes do not have."""

    schedule: str
    message: str


class WrittenAnswer(_Part):
    """All schedules of a question."""

    outcomes: list[WrittenOutcome]
    refused: list[WrittenRefusal]
    best: str | None = None
    """The schedule that suits the network, where `best` was asked for."""
    rule_slope: int | None = None
    """1 + 2c/t rounded up: from this warm-up slope on a round trip is hidden."""


def written(scenario: Scenario, *, with_timeline: bool = False) -> WrittenAnswer:
    """Simulate a scenario and write down what came out; `with_timeline` adds every pass and message."""
    found: Answer = answer(scenario)
    return WrittenAnswer(
        outcomes=[_outcome(one, with_timeline) for one in found.outcomes],
        refused=[_refusal(one) for one in found.refused],
        best=code_of(found.choice.best.plan) if found.choice else None,
        rule_slope=found.choice.rule_slope if found.choice else None,
    )


def _refusal(one: Refusal) -> WrittenRefusal:
    return WrittenRefusal(schedule=one.value, message=one.message)


def _outcome(one: Outcome, with_timeline: bool) -> WrittenOutcome:
    found = one.simulation
    return WrittenOutcome(
        schedule=code_of(one.plan),
        iteration_s=found.iteration_s,
        bound_s=one.bound.seconds,
        bound_by=one.bound.binds,
        gap_to_bound_pct=round(100 * one.gap_to_bound, 6),
        bubble_fractions=found.bubble_fractions,
        micro_batches_held=found.held,
        passes=[WrittenPass(rank=rank, **p._asdict()) for rank, passes in enumerate(found.passes) for p in passes]
        if with_timeline
        else None,
        transfers=[WrittenTransfer(**t._asdict()) for sent in found.transfers for t in sent] if with_timeline else None,
    )
