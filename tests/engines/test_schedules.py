from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.engines.stage import GRADIENT_BUFFERS
from runners.schedules import (
    SCHEDULES,
    Operation,
    Schedule,
    bubble_fraction,
    gpipe,
    layers_of_stages,
    micro_batches_in_flight,
    one_f_one_b,
    schedule,
)

names = st.sampled_from(sorted(SCHEDULES))
sizes = st.integers(1, 12)
counts = st.integers(1, 40)


@given(names, sizes, counts)
def test_every_stage_takes_every_micro_batch_forward_then_backward_once(name: str, stages: int, count: int) -> None:
    plan = schedule(name, stages, count)
    assert len(plan) == stages
    for operations in plan:
        assert Counter(operations) == Counter(Operation(kind, k) for kind in ("F", "B") for k in range(count))
        for k in range(count):
            assert operations.index(Operation("F", k)) < operations.index(Operation("B", k))


class Simulation:
    """Stages that wait for their input, with the engine's buffers: transfers need a posted receive to leave.

    Each operation is cut into what the engine does one after the other; nothing takes time, only order matters.
    """

    class Box(NamedTuple):
        """One direction of one link: sent and released micro batches, receive buffers, sends under way at most."""

        sent: list[int]
        released: list[int]
        buffers: int
        limit: int

        def can_send(self) -> bool:
            return len(self.sent) < self.limit + len(self.released) + self.buffers

        def all_left(self) -> bool:
            return len(self.sent) <= len(self.released) + self.buffers

    def __init__(self, plan: Schedule) -> None:
        in_flight = [micro_batches_in_flight(operations) for operations in plan]
        links = range(len(plan) - 1)
        self.forward = [self.Box([], [], in_flight[r + 1] + 1, in_flight[r]) for r in links]
        self.backward = [self.Box([], [], GRADIENT_BUFFERS, in_flight[r + 1]) for r in links]
        self.todo = [
            [action for operation in ops for action in self.actions(r, operation)] for r, ops in enumerate(plan)
        ]

    def actions(self, stage: int, operation: Operation) -> list[tuple[str, Simulation.Box, int]]:
        before = [self.forward[stage - 1], self.backward[stage - 1]] if stage else []
        after = [self.forward[stage], self.backward[stage]] if stage < len(self.forward) else []
        k = operation.micro_batch
        if operation.kind == "F":
            return [("take", box, k) for box in before[:1]] + [("send", box, k) for box in after[:1]]
        return [
            *[("take", box, k) for box in after[1:]],
            *[("release", box, k) for box in after[1:]],
            *[("release", box, k) for box in before[:1]],
            *[("send", box, k) for box in before[1:]],
        ]

    def advance(self, stage: int) -> bool:
        if not self.todo[stage]:
            return False
        action, box, k = self.todo[stage][0]
        if (action == "take" and k not in box.sent) or (action == "send" and not box.can_send()):
            return False
        if action == "send":
            box.sent.append(k)
        elif action == "release":
            box.released.append(k)
        self.todo[stage].pop(0)
        return True

    def run(self) -> None:
        while any(self.advance(stage) for stage in range(len(self.todo))):
            pass


@given(names, sizes, counts)
def test_no_stage_waits_for_ever_with_the_buffers_of_the_engine(name: str, stages: int, count: int) -> None:
    simulation = Simulation(schedule(name, stages, count))
    simulation.run()
    assert not any(simulation.todo)
    assert all(box.all_left() for box in simulation.forward + simulation.backward)


def test_the_simulation_finds_a_deadlock() -> None:
    plan = one_f_one_b(2, 4)
    plan[0] = one_f_one_b(1, 4)[0]
    plan[1] = gpipe(1, 4)[0]  # holds all gradients back until it has all activations, which stage 0 does not send
    simulation = Simulation(plan)
    simulation.run()
    assert any(simulation.todo)


@given(sizes, counts)
def test_gpipe_holds_all_micro_batches_and_1f1b_no_more_than_stages_to_come(stages: int, count: int) -> None:
    assert [micro_batches_in_flight(ops) for ops in gpipe(stages, count)] == [count] * stages
    assert [micro_batches_in_flight(ops) for ops in one_f_one_b(stages, count)] == [
        min(stages - stage, count) for stage in range(stages)
    ]


def test_1f1b_of_three_stages_is_the_textbook_one() -> None:
    shown = [" ".join(f"{op.kind}{op.micro_batch}" for op in ops) for ops in one_f_one_b(3, 4)]
    assert shown == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_bubble_is_over_ideal_time() -> None:
    assert bubble_fraction(4, 8) == 3 / 8
    assert bubble_fraction(1, 8) == 0


@given(st.integers(1, 60), st.integers(1, 60))
def test_layers_are_spread_evenly_and_in_order(layers: int, stages: int) -> None:
    if stages > layers:
        with pytest.raises(ValueError, match=f"num_stages {stages} .* use 1 to {layers}"):
            layers_of_stages(layers, stages)
        return
    spread = layers_of_stages(layers, stages)
    assert [layer for stage in spread for layer in stage] == list(range(layers))
    assert max(map(len, spread)) - min(map(len, spread)) <= 1
    assert len(spread[0]) >= len(spread[-1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("2f2b", 2, 4), "schedule '2f2b' is not known; use gpipe, 1f1b"),
        (("gpipe", 0, 4), "num_stages 0 .*use at least 1"),
        (("1f1b", 2, 0), "num_micro_batches 0 .*use at least 1"),
    ],
)
def test_impossible_schedules_name_value_and_remedy(arguments: tuple[str, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schedule(*arguments)
