"""The closed form of DualPipe's bubble, against a simulation of its order (DeepSeek-V3 report 2024, figure 5).

Micro batches enter at both ends of the pipeline: each rank holds a stage of either direction, and is simulated with a
forward pass of one unit, and two units of a backward pass, half of which are for the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from parlab.planner import DEFAULT, Job, cluster
from parlab.planner.job.presets import preset
from parlab.planner.prediction.timing import Clock

LLAMA = preset("Llama 3.1 405B")
assert LLAMA is not None
JOB = Job(replace(LLAMA.model, num_layers=128), 32, tensor_parallel=8, has_flash_attention=True)
NODES = cluster("H100", 128, 8)
FORWARD_S, WEIGHTS_S = 1.0, 1.0
BACKWARD_S = 2 * FORWARD_S


class Work(NamedTuple):
    """What a rank does at once: the directions of its passes, or weights put off before."""

    forward: int | None = None
    backward: int | None = None
    takes_weights: bool = False
    """Whether the backward pass includes its weights."""

    @property
    def seconds(self) -> float:
        if self.forward is None and self.backward is None:
            return WEIGHTS_S
        backward_s = 0.0 if self.backward is None else BACKWARD_S - (0.0 if self.takes_weights else WEIGHTS_S)
        return backward_s + (0.0 if self.forward is None else FORWARD_S)


def order(rank: int, ranks: int, micro_batches: int) -> Iterator[Work]:
    """Yield the work of a rank: its near direction enters the pipeline at the closer end, `far` at the other one."""
    from_end = min(rank, ranks - 1 - rank)
    near = 0 if rank < ranks / 2 else 1
    far, inner = 1 - near, ranks // 2 - 1 - from_end
    put_off = 0
    yield from [Work(near)] * (2 * inner)
    yield from [Work(near), Work(far)] * (from_end + 1)
    yield from [Work(None, far), Work(), Work(far)] * inner
    yield from [Work(near, far, True), Work(far, near, True)] * (micro_batches // 2 - ranks + from_end + 1)
    yield from [Work(None, far, True), Work(far, near, True)] * inner
    last = [Work(None, direction) for _ in range(from_end + 1) for direction in (far, near)]
    for place, work in enumerate(last):
        whole = place < from_end + 1
        put_off += not whole
        yield work._replace(takes_weights=whole)
    for _ in range(inner):
        yield from (Work(), Work(None, near))
    yield from [Work()] * put_off


def simulated_s(ranks: int, micro_batches: int) -> float:
    """Return the time until all ranks have done their work."""
    orders = [list(order(rank, ranks, micro_batches)) for rank in range(ranks)]
    free_s, ends = [0.0] * ranks, dict[tuple[str, int, int, int], float]()
    counts = [{("F", 0): 0, ("F", 1): 0, ("B", 0): 0, ("B", 1): 0} for _ in range(ranks)]
    places = [0] * ranks
    while any(place < len(own) for place, own in zip(places, orders, strict=True)):
        moved = False
        for rank, own in enumerate(orders):
            while places[rank] < len(own):
                work, needed, made = own[places[rank]], list[tuple[str, int, int, int]](), []
                for kind, direction in (("F", work.forward), ("B", work.backward)):
                    if direction is None:
                        continue
                    stage = rank if direction == 0 else ranks - 1 - rank
                    number = counts[rank][kind, direction]
                    made.append((kind, direction, number, stage))
                    if kind == "F" and stage:
                        needed.append(("F", direction, number, stage - 1))
                    if kind == "B":
                        last = stage == ranks - 1
                        needed.append(("F", direction, number, stage) if last else ("B", direction, number, stage + 1))
                if any(need not in ends for need in needed):
                    break
                begin_s = max([free_s[rank], *(ends[need] for need in needed)])
                free_s[rank] = begin_s + work.seconds
                for kind, direction, _, _ in made:
                    counts[rank][kind, direction] += 1
                ends |= dict.fromkeys(made, free_s[rank])
                places[rank] += 1
                moved = True
        assert moved, f"the order of {ranks} ranks waits for itself"
    expected = {("F", 0): micro_batches // 2, ("F", 1): micro_batches // 2}
    expected |= {("B", 0): micro_batches // 2, ("B", 1): micro_batches // 2}
    assert all(own == expected for own in counts)
    return max(free_s)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(4, 8), (4, 20), (8, 16), (8, 40), (16, 32), (16, 64)])
def test_the_closed_form_of_the_bubble_is_that_of_the_simulated_order(ranks: int, micro_batches: int) -> None:
    bubble_s = simulated_s(ranks, micro_batches) - micro_batches * (FORWARD_S + BACKWARD_S)
    job = replace(JOB, pipeline_parallel=ranks, global_batch_size=micro_batches)
    parts, plain = (
        Clock(replace(job, schedule=schedule), NODES, DEFAULT.time).timing() for schedule in ("dualpipe", "1f1b")
    )
    others_s = (ranks - 1) * (FORWARD_S + BACKWARD_S)
    assert parts.bubble_s / plain.bubble_s == pytest.approx(bubble_s / others_s)
