"""Pipeline schedules: which stage computes what, in which order.

A schedule is one list of operations per rank. It says nothing about transfers: an operation starts when its input is
there, and every rank sends in the order of its own operations. Pure: the server draws what the engines execute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple


class Operation(NamedTuple):
    """One pass of one micro batch through one chunk of layers."""

    kind: Literal["F", "B", "I", "W"]
    """F forward; B backward; I and W its halves: gradient of the input, gradient of the weights."""
    micro_batch: int
    """Counted from 0."""
    chunk: int = 0
    """Which of the rank's chunks, counted from 0; chunk c of rank r is stage c*p + r of the model."""


Schedule = list[list[Operation]]
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1")
"""Names, as a configuration writes them."""


def gpipe(num_stages: int, num_micro_batches: int) -> Schedule:
    """All forward passes, then all backward passes, each in the order of the micro batches.

    Source: Huang et al. 2019, GPipe, section 2.3. Keeps the activations of all micro batches on every stage.
    """
    _check_sizes(num_stages, num_micro_batches)
    forwards = [Operation("F", k) for k in range(num_micro_batches)]
    backwards = [Operation("B", k) for k in range(num_micro_batches)]
    return [forwards + backwards for _ in range(num_stages)]


def one_f_one_b(num_stages: int, num_micro_batches: int, warmup_slope: int = 1) -> Schedule:
    """Warm up with `warmup_slope` forward passes for each stage that follows, then alternate forward and backward.

    Source: Narayanan et al. 2021, Megatron-LM (SC21), section 2.2.1 (PipeDream-Flush) for slope 1. Stage r of p keeps
    the activations of min(slope*(p - 1 - r) + 1, m) micro batches; without transfers time is that of GPipe. Where one
    way between neighbours takes c and a micro batch takes t, a slope of 1 + 2c/t hides the way: slope 2 is known as
    eager 1F1B.
    """
    _check_sizes(num_stages, num_micro_batches)
    if warmup_slope < 1:
        raise ValueError(f"warmup_slope {warmup_slope} lets a stage wait for its own output; use at least 1")
    forwards = [Operation("F", k) for k in range(num_micro_batches)]
    backwards = [Operation("B", k) for k in range(num_micro_batches)]
    return [_alternate(forwards, backwards, warmup_slope * (num_stages - 1 - stage)) for stage in range(num_stages)]


def interleaved(num_ranks: int, num_micro_batches: int, virtual_stages: int) -> Schedule:
    """1F1B over `virtual_stages` chunks per rank, p micro batches through one chunk and then through the next.

    Source: Narayanan et al. 2021 (SC21), section 2.2.2; warm-up as in Megatron-LM's schedules.py. The bubble is
    (p - 1) / (v*m) of the ideal time, paid with v times as many transfers. Raises ValueError unless p divides m.
    """
    _check_sizes(num_ranks, num_micro_batches)
    if virtual_stages < 1:
        raise ValueError(f"virtual_stages {virtual_stages} is no work; use at least 1")
    if num_micro_batches % num_ranks:
        raise ValueError(f"num_micro_batches {num_micro_batches} is no multiple of the {num_ranks} ranks; use one")
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
    """1F1B with the gradient of the weights put off to where a stage would wait.

    Source: Qi et al. 2023, Zero Bubble Pipeline Parallelism, section 2.3 (ZB-H1). Stage r owes the weights' gradients
    of r micro batches, so that every stage holds min(p, m), what 1F1B holds on its first one. The bubble is
    (p - 1)(F + I - W) in the times of the passes.
    """
    _check_sizes(num_stages, num_micro_batches)
    return [_zero_bubble_stage(stage, num_stages, num_micro_batches) for stage in range(num_stages)]


def _zero_bubble_stage(stage: int, num_stages: int, num_micro_batches: int) -> list[Operation]:
    warmup = min(num_stages - 1 - stage, num_micro_batches)
    operations = [Operation("F", k) for k in range(warmup)]
    owed = 0
    for k in range(num_micro_batches):
        is_cooldown = warmup + k >= num_micro_batches
        if not is_cooldown:
            operations.append(Operation("F", warmup + k))
        operations.append(Operation("I", k))
        if is_cooldown or k - owed >= stage:
            operations.append(Operation("W", owed))
            owed += 1
    return operations + [Operation("W", k) for k in range(owed, num_micro_batches)]


def schedule(
    name: str, num_stages: int, num_micro_batches: int, *, warmup_slope: int = 1, virtual_stages: int = 1
) -> Schedule:
    """Return the operations of each rank, in the order in which it executes them.

    `warmup_slope` is for 1f1b, `virtual_stages` (chunks per rank) for interleaved-1f1b. Raises ValueError for a name
    that is not in SCHEDULES and for sizes that the schedule does not have.
    """
    if name == "gpipe":
        return gpipe(num_stages, num_micro_batches)
    if name == "1f1b":
        return one_f_one_b(num_stages, num_micro_batches, warmup_slope)
    if name == "interleaved-1f1b":
        return interleaved(num_stages, num_micro_batches, virtual_stages)
    if name == "zb-h1":
        return zero_bubble_h1(num_stages, num_micro_batches)
    raise ValueError(f"schedule {name!r} is not known; use {', '.join(SCHEDULES)}")


def micro_batches_in_flight(operations: Sequence[Operation]) -> int:
    """Return the most micro batches whose activations one rank holds at a time, those of each chunk counted apart.

    A micro batch is in flight from its forward to its backward pass through a chunk, or to the second half of it.
    """
    now = most = 0
    for operation in operations:
        now += {"F": 1, "B": -1, "I": 0, "W": -1}[operation.kind]
        most = max(most, now)
    return most


def bubble_fraction(num_stages: int, num_micro_batches: int, virtual_stages: int = 1) -> float:
    """Return bubble time over ideal time, (p - 1) / (v*m): GPipe and 1F1B with v = 1, and interleaved 1F1B.

    Ideal time is what m micro batches take with no stage ever waiting; the share of the whole step that is bubble is
    smaller: (p - 1) / (m + p - 1) for v = 1. Transfers cost nothing here, and all stages take equally long. Source:
    Narayanan et al. 2021, sections 2.2.1 and 2.2.2.
    """
    _check_sizes(num_stages, num_micro_batches)
    return (num_stages - 1) / (virtual_stages * num_micro_batches)


def layers_of_stages(num_layers: int, num_stages: int) -> list[range]:
    """Return the layers of each stage: consecutive, as even as can be, one more on the first stages.

    The first stages get the extra layers because the last one has the head and the loss to compute. Raises
    ValueError where a stage would have none.
    """
    if not 1 <= num_stages <= num_layers:
        raise ValueError(f"num_stages {num_stages} does not fit num_layers {num_layers}; use 1 to {num_layers} stages")
    share, extra = divmod(num_layers, num_stages)
    begins = [stage * share + min(stage, extra) for stage in range(num_stages + 1)]
    return [range(begins[stage], begins[stage + 1]) for stage in range(num_stages)]


def _check_sizes(num_stages: int, num_micro_batches: int) -> None:
    if num_stages < 1:
        raise ValueError(f"num_stages {num_stages} is no pipeline; use at least 1")
    if num_micro_batches < 1:
        raise ValueError(f"num_micro_batches {num_micro_batches} is no work; use at least 1")
