import math

import pytest

from parlab.tuner.space import Candidate, Fit, Launch, Observation, Past, Space
from parlab.tuner.strategies import STRATEGIES, advance, replay

from .landscapes import LIMIT, grid, key, measure, needed, truth


def regret(space: Space, done: list[Observation], measured: dict[str, Observation]) -> float:
    best = space.best(list(measured.values()))
    result = space.best(done)
    assert best is not None
    assert result is not None
    return 1 - (space.score(result) or 0) / (space.score(best) or 1)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_finds_a_good_setting_and_launches_nothing_twice(name: str) -> None:
    space = grid()
    measured = measure(space)
    done, why = replay(STRATEGIES[name], space, measured)
    assert len({observation.key for observation in done}) == len(done)
    assert why
    # DeepSpeed's order looks at the largest micro batches only; the others find the best.
    assert regret(space, done, measured) < (0.1 if name == "deepspeed" else 0.01)


def test_exhaustive_and_random_try_everything() -> None:
    space = grid()
    for name in ("exhaustive", "random"):
        done, _ = replay(STRATEGIES[name], space, measure(space))
        assert {observation.key for observation in done} == set(space.by_key)


def test_planned_takes_few_launches_with_a_plan_that_is_right() -> None:
    space = grid()
    done, why = replay(STRATEGIES["planned"], space, measure(space))
    assert len(done) <= 6
    assert "noise" in why


def test_an_unplanned_space_expects_values_from_its_first_measurement_on_and_a_planned_one_from_the_start() -> None:
    expected = {}
    for name, predicted_s in (("planned", 0.1), ("unplanned", None)):
        space = Space([Candidate(str(size), size, features=(size,), predicted_s=predicted_s) for size in (1, 2, 3, 4)])
        first = advance(STRATEGIES["planned"], space, [])
        assert isinstance(first, Launch)
        second = advance(STRATEGIES["planned"], space, [Observation(first.key, "finished", 0.1, 0.003)])
        assert isinstance(second, Launch)
        expected[name] = [launch.expected is not None for launch in (first, second)]
    assert expected == {"planned": [True, True], "unplanned": [False, True]}


@pytest.mark.parametrize(
    "error",
    [
        lambda stage, size, accumulation: 3.0,
        lambda stage, size, accumulation: 1 + 0.1 * stage,
        lambda stage, size, accumulation: size**0.1,
        lambda stage, size, accumulation: 1 + 0.1 * math.sin(stage + 5 * size + 7 * accumulation),
    ],
    ids=["three times off", "worse by stage", "worse by size", "wiggling"],
)
def test_planned_mends_a_plan_that_is_wrong(error: object) -> None:
    space = grid(planned_error=error)  # type: ignore[arg-type]
    measured = measure(space)
    done, _ = replay(STRATEGIES["planned"], space, measured)
    assert regret(space, done, measured) < 0.02
    assert len(done) <= 12


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_cannot_fit_is_never_launched(name: str) -> None:
    space = grid(memory=True)
    done, _ = replay(STRATEGIES[name], space, measure(space, limit=LIMIT))
    assert not [observation.key for observation in done if space.by_key[observation.key].fit == Fit.NO]


def test_after_an_out_of_memory_nothing_that_needs_as_much_is_tried() -> None:
    space = grid(memory=True)
    limit = LIMIT * 0.97  # the plan is a little too low
    done, _ = replay(STRATEGIES["planned"], space, measure(space, limit=limit))
    burst = [i for i, observation in enumerate(done) if observation.state == "oom"]
    assert len(burst) <= 1
    for i in burst:
        least = needed(int(done[i].key[1]), space.by_key[done[i].key].micro_batch_size)
        after = [space.by_key[observation.key] for observation in done[i + 1 :]]
        assert all((candidate.predicted_bytes or 0) < least for candidate in after)


def test_three_failures_in_a_row_stop_a_study() -> None:
    space = grid()
    failed = {candidate.key: Observation(candidate.key, "failed") for candidate in space.candidates}
    done, why = replay(STRATEGIES["planned"], space, failed)
    assert len(done) == 3
    assert "failed" in why


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_interrupted_strategy_goes_on_where_it_was(name: str) -> None:
    space = grid(planned_error=lambda stage, size, accumulation: size**0.1)
    measured = measure(space)
    whole, why = replay(STRATEGIES[name], space, measured)
    observations: list[Observation] = []
    while not isinstance(step := advance(STRATEGIES[name], space, observations), str):
        observations.append(measured[step.key])
    assert [observation.key for observation in observations] == [observation.key for observation in whole]
    assert step == why


def test_deepspeed_order_finds_the_largest_micro_batch_first() -> None:
    space = grid(memory=True)
    done, _ = replay(STRATEGIES["deepspeed"], space, measure(space, limit=LIMIT))
    keys = [observation.key for observation in done]
    largest = max(c.micro_batch_size for c in space.in_tuning_space("z0") if c.fit == Fit.YES)
    assert keys.index(key(0, 1, 1)) < keys.index(key(0, largest, 1))
    stages = [int(name[1]) for name in keys[1:]]
    assert stages == sorted(stages)


def test_what_other_workloads_taught_is_used_before_anything_is_measured() -> None:
    def feature(size: int, layers: int) -> tuple[float, ...]:
        return (math.log2(size), math.log2(layers))

    def seconds(size: int, layers: int) -> float:
        return layers * (0.05 + 0.01 * size + 0.004 * math.pow(max(0, size - 8), 1.5))

    past = [
        Past(feature(size, layers), 0.01 * size * layers / seconds(size, layers))
        for layers in (2, 4, 16, 32)
        for size in (1, 2, 4, 8, 16, 32)
    ]
    candidates = [
        Candidate(str(size), size, features=feature(size, 8), predicted_s=0.08 * size) for size in (1, 2, 4, 8, 16, 32)
    ]
    measured = {str(size): Observation(str(size), "finished", seconds(size, 8), 0.003) for size in (1, 2, 4, 8, 16, 32)}
    done, _ = replay(STRATEGIES["planned"], Space(candidates, past=past), measured)
    best = max((1, 2, 4, 8, 16, 32), key=lambda size: size / seconds(size, 8))
    assert done[0].key == str(best)


def test_objectives_choose_differently() -> None:
    small = Candidate("small", samples=8, devices=2)
    large = Candidate("large", samples=20, devices=8)
    seen = [Observation("small", "finished", 1.0), Observation("large", "finished", 2.0)]
    best = {objective: Space([small, large], objective).best(seen) for objective in ("throughput", "latency", "cost")}
    assert {name: observation and observation.key for name, observation in best.items()} == {
        "throughput": "large",
        "latency": "small",
        "cost": "small",
    }


def test_a_space_with_no_point_is_refused() -> None:
    with pytest.raises(ValueError, match="none of its points can run"):
        Space([])


def test_truth_has_one_best_setting() -> None:
    values = sorted(size * a / truth(s, size, a) for s in range(4) for size in (1, 2, 4, 8, 16, 32) for a in (1, 2))
    assert values[-1] > values[-2] * 1.01
