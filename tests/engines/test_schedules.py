from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.engines.training.executor import gradient_buffers, traffic
from runners.engines.training.transfers import Key
from runners.schedules import (
    SCHEDULES,
    Operation,
    Schedule,
    bubble_fraction,
    gpipe,
    interleaved,
    layers_of_stages,
    micro_batches_in_flight,
    one_f_one_b,
    schedule,
    zero_bubble_h1,
)

Kind = Literal["F", "B", "I", "W"]

sizes = st.integers(1, 12)
counts = st.integers(1, 40)


class Plan(NamedTuple):
    """A schedule with its parameters."""

    name: str
    micro_batches: int
    chunks: int
    ranks: Schedule


@st.composite
def plans(draw: st.DrawFn, names: tuple[str, ...] = SCHEDULES) -> Plan:
    name, ranks, count = draw(st.sampled_from(names)), draw(sizes), draw(counts)
    slope = draw(st.integers(1, 4)) if name == "1f1b" else 1
    chunks = draw(st.integers(1, 4)) if name == "interleaved-1f1b" and ranks > 1 else 1
    if name == "interleaved-1f1b":
        count = draw(st.integers(1, 4)) * ranks
    return Plan(name, count, chunks, schedule(name, ranks, count, warmup_slope=slope, virtual_stages=chunks))


@settings(deadline=None)
@given(plans())
def test_every_rank_takes_every_micro_batch_through_every_chunk_once(plan: Plan) -> None:
    kinds: tuple[Kind, ...] = ("F", "I", "W") if plan.name == "zb-h1" else ("F", "B")
    for operations in plan.ranks:
        expected = (Operation(*key) for key in product(kinds, range(plan.micro_batches), range(plan.chunks)))
        assert Counter(operations) == Counter(expected)
        place = {operation: index for index, operation in enumerate(operations)}
        for k, chunk in product(range(plan.micro_batches), range(plan.chunks)):
            order = [place[Operation(kind, k, chunk)] for kind in kinds]
            assert order == sorted(order)


class Simulation:
    """Ranks that wait for their input, with the engine's buffers: a transfer requires a posted receive.

    Each operation is split into the engine's actions in order; nothing takes time, only the order matters.
    """

    class Box(NamedTuple):
        """One direction of one link: sent and released keys, receive buffers, and the limit of unfinished sends."""

        order: list[Key]
        sent: list[Key]
        released: list[Key]
        buffers: int
        limit: int

        def can_send(self) -> bool:
            return len(self.sent) < self.limit + len(self.released) + self.buffers

        def is_drained(self) -> bool:
            return self.order == self.sent and len(self.sent) <= len(self.released) + self.buffers

        def has(self, key: Key) -> bool:
            """Return whether a message has arrived; buffers are assigned in the order of the messages."""
            return key in self.sent[: len(self.released) + self.buffers]

    def __init__(self, plan: Schedule, num_chunks: int = 1) -> None:
        self.last, self.last_chunk = len(plan) - 1, num_chunks - 1
        in_flight = [micro_batches_in_flight(operations) for operations in plan]
        self.activations, self.gradients = [], []  # by the rank that receives
        for rank, operations in enumerate(plan):
            arriving, before, after = (
                traffic(plan, rank, num_chunks),
                in_flight[rank - 1],
                in_flight[(rank + 1) % len(plan)],
            )
            self.activations.append(self.Box(arriving.activations, [], [], in_flight[rank] + 1, before))
            self.gradients.append(self.Box(arriving.gradients, [], [], gradient_buffers(operations), after))
        self.todo = [
            [action for operation in ops for action in self.actions(r, operation)] for r, ops in enumerate(plan)
        ]

    def actions(self, rank: int, operation: Operation) -> list[tuple[str, Simulation.Box, Key]]:
        kind, k, chunk = operation
        next_rank, next_chunk = (0, chunk + 1) if rank == self.last else (rank + 1, chunk)
        last_rank, last_chunk = (self.last, chunk - 1) if rank == 0 else (rank - 1, chunk)
        has_before, has_after = last_chunk >= 0, next_chunk <= self.last_chunk
        take_x = [("take", self.activations[rank], Key(k, chunk))] * has_before
        send_y = [("send", self.activations[next_rank], Key(k, next_chunk))] * has_after
        take_g = [("take", self.gradients[rank], Key(k, chunk))] * has_after
        send_g = [("send", self.gradients[last_rank], Key(k, last_chunk))] * has_before
        release = [("release", box, key) for _, box, key in take_g + take_x]
        return {"F": take_x + send_y, "B": take_g + release + send_g, "I": take_g + send_g, "W": release}[kind]

    def advance(self, rank: int) -> bool:
        if not self.todo[rank]:
            return False
        action, box, key = self.todo[rank][0]
        if (action == "take" and not box.has(key)) or (action == "send" and not box.can_send()):
            return False
        if action == "send":
            box.sent.append(key)
        elif action == "release":
            box.released.append(key)
        self.todo[rank].pop(0)
        return True

    def run(self) -> None:
        while any(self.advance(rank) for rank in range(len(self.todo))):
            pass


@settings(deadline=None)
@given(plans())
def test_no_schedule_deadlocks_with_the_buffers_of_the_engine(plan: Plan) -> None:
    simulation = Simulation(plan.ranks, plan.chunks)
    simulation.run()
    assert not any(simulation.todo)
    assert all(box.is_drained() for box in simulation.activations + simulation.gradients)


def test_the_simulation_finds_a_deadlock() -> None:
    plan = one_f_one_b(2, 4)
    plan[0] = one_f_one_b(1, 4)[0]
    plan[1] = gpipe(1, 4)[0]  # sends no gradient before it has all activations, which rank 0 does not send
    simulation = Simulation(plan)
    simulation.run()
    assert any(simulation.todo)


@settings(deadline=None)
@given(sizes, counts, st.integers(1, 4))
def test_schedules_hold_the_micro_batches_of_their_papers(stages: int, count: int, slope: int) -> None:
    def held(plan: Schedule) -> list[int]:
        return [micro_batches_in_flight(operations) for operations in plan]

    assert held(gpipe(stages, count)) == [count] * stages
    assert held(one_f_one_b(stages, count)) == [min(stages - stage, count) for stage in range(stages)]
    assert held(one_f_one_b(stages, count, slope)) == [
        min(slope * (stages - 1 - stage) + 1, count) for stage in range(stages)
    ]
    assert held(zero_bubble_h1(stages, count)) == [min(stages, count)] * stages


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(2, 4), st.integers(1, 4))
def test_interleaved_1f1b_holds_a_little_more_on_the_first_rank(ranks: int, chunks: int, rounds: int) -> None:
    plan = interleaved(ranks, rounds * ranks, chunks)
    most = ranks * chunks + ranks - 1  # 1F1B's p, each of v chunks, times 1 + (p - 1)/(p*v)
    assert micro_batches_in_flight(plan[0]) == min(most, rounds * ranks * chunks)


Times = dict[str, float]


def makespan(plan: Schedule, num_chunks: int, times: Times, way: float = 0.0) -> float:
    """Return the total time of a plan in which operations take `times` and a one-way transfer takes `way`."""
    last = len(plan) * num_chunks - 1
    done: dict[tuple[str, int, int], float] = {}
    clock, todo = [0.0] * len(plan), [list(operations) for operations in plan]
    while any(todo):
        progress = False
        for rank, operations in enumerate(todo):
            while operations:
                kind, k, chunk = operations[0]
                stage = chunk * len(plan) + rank
                if kind == "F":
                    need = ("F", k, stage - 1) if stage else None
                elif kind == "W":
                    need = ("I", k, stage)
                else:
                    need = (kind, k, stage + 1) if stage < last else ("F", k, stage)
                if need is not None and need not in done:
                    break
                ready = 0.0 if need is None else done[need] + (way if need[2] != stage else 0.0)
                clock[rank] = max(clock[rank], ready) + times[kind]
                done[kind, k, stage] = clock[rank]
                operations.pop(0)
                progress = True
        assert progress
    return max(clock)


durations = st.integers(1, 5)


@settings(deadline=None)
@given(plans(("gpipe", "1f1b", "interleaved-1f1b")), durations, durations)
def test_the_bubble_is_that_of_the_formula(plan: Plan, forward: int, backward: int) -> None:
    ranks, each = len(plan.ranks), forward + backward
    ideal = plan.micro_batches * plan.chunks * each
    if plan.micro_batches < ranks:  # the formulas assume a full pipeline
        return
    bubble = makespan(plan.ranks, plan.chunks, {"F": forward, "B": backward}) - ideal
    assert bubble == pytest.approx(bubble_fraction(ranks, plan.micro_batches, plan.chunks) * ideal)
    assert bubble == (ranks - 1) * each


@settings(deadline=None)
@given(sizes, counts, durations, durations, durations)
def test_the_bubble_of_zero_bubble_h1_is_shorter_by_the_weights(
    stages: int, count: int, forward: int, of_input: int, of_weights: int
) -> None:
    if count < stages or of_weights > min(
        forward, of_input
    ):  # the formula requires weight gradients that fit into the waits
        return
    total = makespan(zero_bubble_h1(stages, count), 1, {"F": forward, "I": of_input, "W": of_weights})
    bubble = total - count * (forward + of_input + of_weights)
    assert bubble == (stages - 1) * (forward + of_input - of_weights)


def test_a_steeper_warm_up_hides_slow_links() -> None:
    """Forward 1, backward 3, one-way transfer 4: 1F1B waits for a round trip, slope 3 hides it."""
    times, count = {"F": 1.0, "B": 3.0}, 64
    slope_1, slope_3 = (makespan(one_f_one_b(3, count, slope), 1, times, way=4.0) for slope in (1, 3))
    lower_bound = count * 4 + 2 * (4 + 2 * 4)
    assert slope_1 > 1.5 * lower_bound
    assert lower_bound <= slope_3 < 1.05 * lower_bound
    assert micro_batches_in_flight(one_f_one_b(3, count, 3)[0]) == 7


def test_two_chunks_on_two_ranks_go_round_twice() -> None:
    rows = [" ".join(f"{op.kind}{op.micro_batch}{'ab'[op.chunk]}" for op in ops) for ops in interleaved(2, 2, 2)]
    assert rows == ["F0a F1a F0b F1b B0b B1b B0a B1a", "F0a F1a F0b B0b F1b B1b B0a B1a"]


def test_zero_bubble_h1_of_three_stages_fills_its_waits_with_weights() -> None:
    rows = [" ".join(f"{op.kind}{op.micro_batch}" for op in ops) for ops in zero_bubble_h1(3, 4)]
    assert rows == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]


def test_1f1b_of_three_stages_is_the_published_schedule() -> None:
    rows = [" ".join(f"{op.kind}{op.micro_batch}" for op in ops) for ops in one_f_one_b(3, 4)]
    assert rows == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_bubble_is_over_ideal_time() -> None:
    assert bubble_fraction(4, 8) == 3 / 8
    assert bubble_fraction(1, 8) == 0


@settings(deadline=None)
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
    ("arguments", "options", "message"),
    [
        (("2f2b", 2, 4), {}, "unknown schedule '2f2b'; use gpipe, 1f1b, interleaved-1f1b, zb-h1"),
        (("gpipe", 0, 4), {}, "num_stages 0 .*use at least 1"),
        (("1f1b", 2, 0), {}, "num_micro_batches 0 .*use at least 1"),
        (("1f1b", 2, 4), {"warmup_slope": 0}, "warmup_slope 0 .*use at least 1"),
        (("interleaved-1f1b", 2, 4), {"virtual_stages": 0}, "virtual_stages 0 .*use at least 1"),
        (("interleaved-1f1b", 4, 6), {"virtual_stages": 2}, "num_micro_batches 6 is not a multiple of the 4 ranks"),
    ],
)
def test_errors_of_invalid_schedules_contain_value_and_remedy(
    arguments: tuple[str, int, int], options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        schedule(*arguments, **options)  # type: ignore[arg-type]
