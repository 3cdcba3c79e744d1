"""Pipeline schedules: the operations of each rank, in execution order.

A schedule is one list of operations per rank. Transfers are implicit: an operation starts when its input has arrived,
and each rank sends in the order of its own operations. The module imports neither torch nor Django, so the server
draws exactly the schedules that the engines execute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple


class Operation(NamedTuple):
    """One pass of one micro batch through one chunk of layers."""

    kind: Literal["F", "B", "I", "W"]
    """F: forward. B: backward. I and W: the two halves of B, the gradients of the input and of the weights."""
    micro_batch: int
    """Index of the micro batch, counted from 0."""
    chunk: int = 0
    """Index of the rank's chunk, counted from 0; chunk c of rank r is stage c*p + r of the model."""


Schedule = list[list[Operation]]
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1")
"""Valid values of `parallel.schedule`."""


def gpipe(num_stages: int, num_micro_batches: int) -> Schedule:
    """Return the GPipe schedule: all forward passes, then all backward passes, both in micro-batch order.

    Every stage keeps the activations of all micro batches. Raises ValueError for sizes below 1. Source: Huang et al.
    2019, GPipe, section 2.3.
    """
    _check_sizes(num_stages, num_micro_batches)
    forwards = [Operation("F", k) for k in range(num_micro_batches)]
    backwards = [Operation("B", k) for k in range(num_micro_batches)]
    return [forwards + backwards for _ in range(num_stages)]


def one_f_one_b(num_stages: int, num_micro_batches: int, warmup_slope: int = 1) -> Schedule:
    """Return 1F1B: `warmup_slope` warm-up forward passes per following stage, then F and B alternate.

    Stage r of p keeps the activations of min(slope*(p - 1 - r) + 1, m) micro batches. If transfers cost nothing, the
    step time equals that of GPipe. If a one-way transfer between neighbours takes c and a micro batch takes t, a slope
    of at least 1 + 2c/t hides the transfer; slope 2 is known as eager 1F1B. Raises ValueError for sizes or a slope
    below 1. Source (slope 1): Narayanan et al. 2021, Megatron-LM (SC21), section 2.2.1 (PipeDream-Flush).
    """
    _check_sizes(num_stages, num_micro_batches)
    if warmup_slope < 1:
        raise ValueError(f"warmup_slope {warmup_slope} makes a stage wait for its own output; use at least 1")
    forwards = [Operation("F", k) for k in range(num_micro_batches)]
    backwards = [Operation("B", k) for k in range(num_micro_batches)]
    return [_alternate(forwards, backwards, warmup_slope * (num_stages - 1 - stage)) for stage in range(num_stages)]


def interleaved(num_ranks: int, num_micro_batches: int, virtual_stages: int) -> Schedule:
    """Return interleaved 1F1B over v = `virtual_stages` chunks per rank; p micro batches pass a chunk, then the next.

    The bubble is (p - 1) / (v*m) of the ideal time, at the cost of v times as many transfers. Raises ValueError for
    sizes below 1 and unless p divides m. Source: Narayanan et al. 2021 (SC21), section 2.2.2; warm-up as in
    Megatron-LM's schedules.py.
    """
    _check_sizes(num_ranks, num_micro_batches)
    if virtual_stages < 1:
        raise ValueError(f"virtual_stages {virtual_stages} is too small; use at least 1")
    if num_micro_batches % num_ranks:
        raise ValueError(
            f"num_micro_batches {num_micro_batches} is not a multiple of the {num_ranks} ranks; use a multiple of"
            f" {num_ranks}"
        )
    chunks = range(virtual_stages)
    forwards = list(_in_groups("F", num_ranks, num_micro_batches, chunks))
    backwards = list(_in_groups("B", num_ranks, num_micro_batches, chunks[::-1]))
    warmup = [2 * (num_ranks - 1 - rank) + (virtual_stages - 1) * num_ranks for rank in range(num_ranks)]
    return [_alternate(forwards, backwards, count) for count in warmup]


def _in_groups(
    kind: Literal["F", "B"], num_ranks: int, num_micro_batches: int, chunks: Sequence[int]
) -> Iterator[Operation]:
    for first in range(0, num_micro_batches, num_ranks):
        for chunk in chunks:
            for k in range(first, first + num_ranks):
                yield Operation(kind, k, chunk)


def _alternate(forwards: Sequence[Operation], backwards: Sequence[Operation], warmup: int) -> list[Operation]:
    warmup = min(warmup, len(forwards))
    operations = list(forwards[:warmup])
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        operations += [forward, backward]
    return operations + list(backwards[len(forwards) - warmup :])


def zero_bubble_h1(num_stages: int, num_micro_batches: int) -> Schedule:
    """Return ZB-H1: 1F1B in which weight gradients are deferred to fill the times at which a stage would wait.

    Stage r defers the weight gradients of r micro batches, so every stage holds min(p, m) micro batches, as the first
    stage does under 1F1B. The bubble is (p - 1)(F + I - W), in the times of the passes. Raises ValueError for sizes
    below 1. Source: Qi et al. 2023, Zero Bubble Pipeline Parallelism, section 2.3.
    """
    _check_sizes(num_stages, num_micro_batches)
    return [_zero_bubble_stage(stage, num_stages, num_micro_batches) for stage in range(num_stages)]


def _zero_bubble_stage(stage: int, num_stages: int, num_micro_batches: int) -> list[Operation]:
    warmup = min(num_stages - 1 - stage, num_micro_batches)
    operations = [Operation("F", k) for k in range(warmup)]
    first_deferred = 0
    for k in range(num_micro_batches):
        is_cooldown = warmup + k >= num_micro_batches
        if not is_cooldown:
            operations.append(Operation("F", warmup + k))
        operations.append(Operation("I", k))
        if is_cooldown or k - first_deferred >= stage:
            operations.append(Operation("W", first_deferred))
            first_deferred += 1
    return operations + [Operation("W", k) for k in range(first_deferred, num_micro_batches)]


def schedule(
    name: str, num_stages: int, num_micro_batches: int, *, warmup_slope: int = 1, virtual_stages: int = 1
) -> Schedule:
    """Return the operations of each rank for the schedule `name`, in execution order.

    `warmup_slope` applies to 1f1b, `virtual_stages` (chunks per rank) to interleaved-1f1b; other schedules ignore
    them. Raises ValueError for a name that is not in SCHEDULES and for sizes that the schedule does not support.
    """
    if name == "gpipe":
        return gpipe(num_stages, num_micro_batches)
    if name == "1f1b":
        return one_f_one_b(num_stages, num_micro_batches, warmup_slope)
    if name == "interleaved-1f1b":
        return interleaved(num_stages, num_micro_batches, virtual_stages)
    if name == "zb-h1":
        return zero_bubble_h1(num_stages, num_micro_batches)
    raise ValueError(f"unknown schedule {name!r}; use {', '.join(SCHEDULES)}")


def micro_batches_in_flight(operations: Sequence[Operation]) -> int:
    """Return the largest number of micro batches whose activations a rank holds at once.

    A micro batch counts once per chunk. It is in flight from its forward pass through a chunk to the backward pass
    (B), or to the weight half of it (W) if the backward pass is split.
    """
    current = peak = 0
    for operation in operations:
        current += {"F": 1, "B": -1, "I": 0, "W": -1}[operation.kind]
        peak = max(peak, current)
    return peak


def bubble_fraction(num_stages: int, num_micro_batches: int, virtual_stages: int = 1) -> float:
    """Return the bubble time divided by the ideal time, (p - 1) / (v*m).

    Valid for GPipe and 1F1B (v = 1) and for interleaved 1F1B, if transfers cost nothing and all stages take equally
    long. The ideal time is that of m micro batches when no stage waits. As a share of the whole step the bubble is
    smaller: (p - 1) / (m + p - 1) for v = 1. Raises ValueError for sizes below 1. Source: Narayanan et al. 2021
    (SC21), sections 2.2.1 and 2.2.2.
    """
    _check_sizes(num_stages, num_micro_batches)
    return (num_stages - 1) / (virtual_stages * num_micro_batches)


def layers_of_stages(num_layers: int, num_stages: int) -> list[range]:
    """Return the layers of each stage: consecutive and as even as possible.

    The first stages take the extra layers, because the last stage also computes the head and the loss. Raises
    ValueError if a stage would have no layer.
    """
    if not 1 <= num_stages <= num_layers:
        raise ValueError(f"num_stages {num_stages} does not fit num_layers {num_layers}; use 1 to {num_layers} stages")
    share, extra = divmod(num_layers, num_stages)
    begins = [stage * share + min(stage, extra) for stage in range(num_stages + 1)]
    return [range(begins[stage], begins[stage + 1]) for stage in range(num_stages)]


def _check_sizes(num_stages: int, num_micro_batches: int) -> None:
    if num_stages < 1:
        raise ValueError(f"num_stages {num_stages} is too small; use at least 1")
    if num_micro_batches < 1:
        raise ValueError(f"num_micro_batches {num_micro_batches} is too small; use at least 1")
