"""Pipeline schedules: which stage computes what, in which order.

A schedule is one list of operations per stage. It says nothing about transfers: an operation starts when its input is
there, and every stage sends in the order of its own operations. Pure: the server draws what the engines execute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple


class Operation(NamedTuple):
    """One pass of one micro batch through one stage."""

    kind: Literal["F", "B"]
    """F forward, B backward."""
    micro_batch: int
    """Counted from 0."""


Schedule = list[list[Operation]]


def gpipe(num_stages: int, num_micro_batches: int) -> Schedule:
    """All forward passes, then all backward passes, each in the order of the micro batches.

    Source: Huang et al. 2019, GPipe, section 2.3. Keeps the activations of all micro batches on every stage.
    """
    _check_sizes(num_stages, num_micro_batches)
    forwards = [Operation("F", k) for k in range(num_micro_batches)]
    backwards = [Operation("B", k) for k in range(num_micro_batches)]
    return [forwards + backwards for _ in range(num_stages)]


def one_f_one_b(num_stages: int, num_micro_batches: int) -> Schedule:
    """Warm up with as many forward passes as stages follow, then alternate one forward and one backward pass.

    Source: Narayanan et al. 2021, Megatron-LM (SC21), section 2.2.1 (PipeDream-Flush). Stage r of p keeps the
    activations of min(p - r, m) micro batches; time is that of GPipe.
    """
    _check_sizes(num_stages, num_micro_batches)
    return [_one_f_one_b_stage(num_stages - 1 - stage, num_micro_batches) for stage in range(num_stages)]


def _one_f_one_b_stage(stages_after: int, num_micro_batches: int) -> list[Operation]:
    warmup = min(stages_after, num_micro_batches)
    operations = [Operation("F", k) for k in range(warmup)]
    for k in range(num_micro_batches - warmup):
        operations += [Operation("F", warmup + k), Operation("B", k)]
    return operations + [Operation("B", k) for k in range(num_micro_batches - warmup, num_micro_batches)]


SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {"gpipe": gpipe, "1f1b": one_f_one_b}
"""Name, as a configuration writes it -> schedule of (num_stages, num_micro_batches)."""


def schedule(name: str, num_stages: int, num_micro_batches: int) -> Schedule:
    """Return the operations of each stage, in the order in which the stage executes them.

    Raises ValueError for a name that is not in SCHEDULES and for sizes below 1.
    """
    if name not in SCHEDULES:
        raise ValueError(f"schedule {name!r} is not known; use {', '.join(SCHEDULES)}")
    return SCHEDULES[name](num_stages, num_micro_batches)


def micro_batches_in_flight(operations: Sequence[Operation]) -> int:
    """Return the most micro batches whose activations one stage holds at a time.

    A micro batch is in flight from its forward to its backward pass on this stage.
    """
    now = most = 0
    for operation in operations:
        now += 1 if operation.kind == "F" else -1
        most = max(most, now)
    return most


def bubble_fraction(num_stages: int, num_micro_batches: int) -> float:
    """Return bubble time over ideal time, (p - 1) / m, the same for GPipe and 1F1B.

    Ideal time is what m micro batches take with no stage ever waiting; the share of the whole step that is bubble is
    smaller: (p - 1) / (m + p - 1). Transfers cost nothing here, and all stages take equally long. Source: Narayanan
    et al. 2021, section 2.2.1.
    """
    _check_sizes(num_stages, num_micro_batches)
    return (num_stages - 1) / num_micro_batches


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
