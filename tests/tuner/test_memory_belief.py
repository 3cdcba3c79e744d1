"""What launches tell about the memory of other settings, and how many may run out of memory."""

from __future__ import annotations

import math
from random import Random

import pytest

from parlab.tuner.space import Candidate, Fit, Observation, Space
from parlab.tuner.strategies import STRATEGIES, replay
from parlab.tuner.strategies.memory_belief import MOST_FAILED, MemoryBelief

LIMIT = 80e9
DEVIATION = 0.2


def setting(share: float, index: int = 0) -> Candidate:
    """A setting that is predicted to need a share of the memory; larger ones are faster."""
    return Candidate(
        f"{index}",
        samples=64,
        features=(math.log2(share), float(index % 3)),
        predicted_s=1 / share,
        predicted_bytes=share * LIMIT,
        memory_limit_bytes=LIMIT,
        memory_deviation=DEVIATION,
    )


def test_the_probability_of_a_setting_is_that_of_its_distribution() -> None:
    assert setting(1.0).fits_probability == pytest.approx(0.5)
    assert setting(math.exp(-DEVIATION)).fits_probability == pytest.approx(0.841, abs=1e-3)
    assert [setting(share).fit for share in (0.6, 1.0, 1.6)] == [Fit.YES, Fit.UNSURE, Fit.NO]
    assert Candidate("unplanned", 1).fits_probability == 1.0


def test_a_launch_that_ran_makes_others_likelier_and_an_out_of_memory_less_likely() -> None:
    belief = MemoryBelief(Space([setting(share, i) for i, share in enumerate((0.9, 0.95, 1.1))]))
    before = belief.chances({})
    ran = belief.chances({0: Observation("0", "finished", 1.0)})
    failed = belief.chances({0: Observation("0", "oom")})
    assert ran[1] > before[1] > failed[1]
    assert ran[2] > before[2] > failed[2]
    assert belief.chances({0: Observation("0", "failed")}) == pytest.approx(before)


def test_a_setting_that_may_fail_is_affordable_only_after_enough_launches_that_ran() -> None:
    belief = MemoryBelief(Space([setting(share, i) for i, share in enumerate((0.3, 0.35, 0.4, 1.0))]))
    chances = belief.chances({})
    assert belief.affordable([0, 1, 2, 3], chances, {}) == [0, 1, 2]
    many = {i: Observation("0", "finished", 1.0) for i in range(10)}
    assert 3 in belief.affordable([3], chances, many)
    assert belief.affordable([3], chances, {0: Observation("0", "finished", 1.0)}) == []


def test_where_nothing_surely_fits_the_likeliest_setting_is_launched() -> None:
    belief = MemoryBelief(Space([setting(share, i) for i, share in enumerate((0.95, 1.0))]))
    assert belief.affordable([0, 1], belief.chances({}), {}) == [0]


def test_at_most_a_tenth_of_the_launches_of_many_studies_runs_out_of_memory() -> None:
    """The memory of each study is off by a factor of its own, as the planner's is for a code base."""
    deal, launches, failed = Random(7), 0, 0
    for _study in range(60):
        common = math.exp(0.9 * DEVIATION * deal.gauss(0, 1))
        space = Space([setting(0.3 * 1.12**i, i) for i in range(14)])
        measured = {}
        for candidate in space.candidates:
            needed = (candidate.predicted_bytes or 0) * common * math.exp(0.44 * DEVIATION * deal.gauss(0, 1))
            seconds = (candidate.predicted_s or 1) * math.exp(0.05 * deal.gauss(0, 1))
            is_oom = needed > LIMIT
            measured[candidate.key] = (
                Observation(candidate.key, "oom") if is_oom else Observation(candidate.key, "finished", seconds, 0.003)
            )
        done, _why = replay(STRATEGIES["planned"], space, measured)
        launches += len(done)
        failed += sum(observation.state == "oom" for observation in done)
    assert failed <= 0.1 * launches
    assert MOST_FAILED < 0.1
