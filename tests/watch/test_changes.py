"""The detection of changes in series of results."""

from __future__ import annotations

import json

import numpy as np
import pytest

from parlab.watch.analysis.changes import LEAST_BEFORE, Detector
from parlab.watch.analysis.measures import is_cost, measure_of, values_of
from parlab.watch.analysis.node_shifts import changed_node
from parlab.watch.analysis.tracks import Point, Track, scan
from tests.bench.campaigns.watch import SEEDS, measured, ours, total
from tests.bench.campaigns.watch_series import simulated


def repeats(count: int, *, level: float = 0.1, noise: float = 0.01, seed: int = 1) -> list[float]:
    draw = np.random.default_rng(seed)
    return [float(value) for value in level * np.exp(draw.normal(0.0, noise, count))]


def track_of(values: list[float], nodes: list[str] | None = None) -> Track:
    track = Track()
    track.add([Point(value, nodes[at] if nodes else "") for at, value in enumerate(values)])
    return track


def test_a_step_is_reported_with_its_place_size_and_interval() -> None:
    (change,) = track_of([*repeats(40), *repeats(30, level=0.106, seed=2)]).changes
    assert (change.kind, change.node) == ("step", "")
    assert abs(change.at - 40) <= 1
    assert change.last_good == change.at - 1
    assert change.low < 0.06 < change.high
    assert change.low > 0.04
    assert change.high < 0.08


def test_equal_steps_in_a_row_are_no_slope() -> None:
    stairs = [level for level in (100.0, 110.0, 120.0, 130.0) for _ in range(12)]
    changes = track_of(stairs).changes
    assert [(change.at, change.kind) for change in changes] == [(12, "step"), (24, "step"), (36, "step")]


def test_the_state_of_an_earlier_release_goes_on() -> None:
    track = track_of([*repeats(40), *repeats(10, level=0.12, seed=2)])
    state = track.state()
    state["detector"]["last"] = state["detector"]["last"][:2]
    continued = Track.from_state(state)
    more = [Point(value) for value in repeats(20, level=0.14, seed=3)]
    assert continued.add(more) == track.add(more) != []


def test_a_single_run_raises_nothing_whatever_its_value() -> None:
    for factor in (0.1, 1.5, 100.0):
        values = repeats(60)
        values[40] *= factor
        assert track_of(values).changes == []


def test_two_disturbed_runs_in_a_row_raise_nothing() -> None:
    values = repeats(60)
    values[40] *= 1.4
    values[41] *= 1.6
    assert track_of(values).changes == []


def test_a_change_waits_for_three_results_and_says_how_many_are_missing() -> None:
    assert track_of(repeats(40)).suspicion is None
    track = track_of(repeats(40))
    assert track.add([Point(0.12)]) == []
    suspicion = track.suspicion
    assert suspicion is not None
    assert suspicion.at == 40
    assert 2 <= suspicion.needed <= 4
    assert suspicion.size > 0.02
    assert track.add([Point(0.12)]) == []
    assert [40] in [track.add([Point(0.12)]) for _ in range(suspicion.needed)]


def test_the_first_results_are_counted_down() -> None:
    track = track_of(repeats(5))
    assert track.notes == ["4 more results are needed before a change can be detected"]


def test_results_one_by_one_give_the_same_changes_as_all_at_once() -> None:
    series = simulated(3, "bimodal nodes", 0.05)
    points = [Point(float(value), f"n{node}") for value, node in zip(series.values, series.nodes, strict=True)]
    whole, grown = Track(), Track()
    whole.add(points)
    for point in points[:150]:
        grown.add([point])
    grown = Track.from_state(json.loads(json.dumps(grown.state())))
    for point in points[150:]:
        grown.add([point])
    assert whole.changes
    assert grown.changes == whole.changes


def test_a_slope_is_one_change_with_its_beginning_and_end() -> None:
    values = [*repeats(50, noise=0.004), *np.linspace(0.1, 0.11, 40), *repeats(50, level=0.11, noise=0.004, seed=2)]
    (change,) = track_of([float(value) for value in values]).changes
    assert change.kind == "slope"
    assert abs(change.at - 50) <= 12
    assert abs(change.end - 90) <= 12
    assert change.size == pytest.approx(0.1, abs=0.02)


def test_runs_on_a_slower_node_are_no_change() -> None:
    draw = np.random.default_rng(5)
    nodes = [f"n{int(draw.integers(3))}" for _ in range(200)]
    factors = {"n0": 1.0, "n1": 1.08, "n2": 0.95}
    values = [value * factors[node] for value, node in zip(repeats(200), nodes, strict=True)]
    track = track_of(values, nodes)
    assert track.changes == []
    assert any("node n1" in note and "no change of the code" in note for note in track.notes)


def test_one_node_that_gets_slower_is_a_change_of_that_node() -> None:
    nodes = [f"n{at % 2}" for at in range(120)]
    values = repeats(120)
    values = [value * (1.08 if at >= 70 and at % 2 else 1.0) for at, value in enumerate(values)]
    (change,) = track_of(values, nodes).changes
    assert (change.kind, change.node) == ("node", "n1")
    assert 69 <= change.at <= 74
    assert change.size == pytest.approx(0.08, abs=0.03)


def test_a_replaced_node_raises_nothing_and_is_explained() -> None:
    nodes = ["old"] * 60 + ["new"] * 40
    values = repeats(60) + [value * 0.9 for value in repeats(40, seed=2)]
    track = track_of(values[:62], nodes[:62])
    assert any("node new is new" in note for note in track.notes)
    track.add([Point(value, node) for value, node in zip(values[62:], nodes[62:], strict=True)])
    assert track.changes == []


def test_code_that_gets_slower_on_the_new_node_is_still_noticed() -> None:
    nodes = ["old"] * 40 + ["new"] * 60
    values = repeats(40) + [value * 0.9 for value in repeats(60, seed=2)]
    values[80:] = [value * 1.06 for value in values[80:]]
    (change,) = track_of(values, nodes).changes
    assert abs(change.at - 80) <= 2


def test_gaps_and_impossible_values_count_for_nothing() -> None:
    values: list[float | None] = [*repeats(30), None, float("nan"), 0.0, -1.0, *repeats(20, level=0.11, seed=2)]
    track = Track()
    track.add([Point(value) for value in values])
    (change,) = track.changes
    assert change.at == 34
    assert change.last_good == 29
    assert any("4 of 54 results" in note for note in track.notes)


def test_values_that_repeat_exactly_need_three_results() -> None:
    (change,) = track_of([1000.0] * 20 + [1010.0] * 3).changes
    assert change.at == 20
    assert change.size == pytest.approx(0.01)


def test_many_series_are_searched_together() -> None:
    values = np.exp(np.random.default_rng(1).normal(0.0, 0.01, (90, 600)))
    values[60:, 550] *= 1.1
    alarms = scan(values)
    assert [(alarm.series, alarm.at) for alarm in alarms if alarm.series == 550] == [(550, 60)]
    assert len(alarms) < 54  # one false alert per 1,000 results


def test_accuracy_on_seeds_that_nothing_was_tuned_on() -> None:
    score = total(list(measured(ours, SEEDS[-6:], [0.0, 0.05]).values()))
    assert score.f1 >= 0.95
    assert score.false_per_1000 <= 1.0
    assert score.delay(0.5) <= 5


def test_measures_have_a_direction() -> None:
    assert [key for key in ("step_time", "throughput", "memory", "mfu") if measure_of(key).is_better_lower] == [
        "step_time",
        "memory",
    ]
    assert measure_of("phase:optimizer").is_better_lower
    assert not measure_of("bandwidth:0-1").is_better_lower
    assert is_cost("epoch_time")
    assert not is_cost("tokens_per_s")
    assert not is_cost("accuracy")


def test_measures_of_a_summary_are_positive_numbers() -> None:
    summary = {
        "step_time_s": {"median": 0.5},
        "samples_per_s": 0,
        "mfu": float("nan"),
        "timers_s": {"optimizer": {"median": 0.1}, "empty": {}},
        "links": [{"source": 0, "target": 1, "bits_per_s": 1e9}],
    }
    assert values_of(summary) == {"step_time": 0.5, "phase:optimizer": 0.1, "bandwidth:0-1": 1e9}


def test_the_first_result_behind_enough_others_can_already_look_like_a_change() -> None:
    detector = Detector(1)
    detector.extend(np.full((LEAST_BEFORE, 1), 0.1))
    assert detector.outlook() is None
    detector.extend(np.full((1, 1), 0.13))
    outlook = detector.outlook()
    assert outlook is not None
    assert outlook.at == LEAST_BEFORE


@pytest.mark.parametrize(
    ("shifts", "node"),
    [
        ([0.03, 0.0], 0),
        ([0.02, 0.0], -1),  # the other may have moved as far
        ([0.06, 0.05, 0.0, 0.0], -1),  # the second has moved, too
    ],
)
def test_a_node_alone_has_changed_if_all_others_have_certainly_stayed(shifts: list[float], node: int) -> None:
    codes = np.repeat(np.arange(len(shifts)), 4)
    is_after = np.tile([False, False, True, True], len(shifts))
    values = np.where(is_after, np.repeat(shifts, 4), 0.0)
    assert changed_node(values, codes, is_after, 0.01) == node
