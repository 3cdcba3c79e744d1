"""What each rank of a pipeline did when: operations of single steps, one row per step and rank.

Engines print the first ten steps and then every hundredth. Writers of one attempt must exclude each other:
`ingest.services` holds its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parlab.series.columns import pack, unpack
from parlab.series.models import OperationChunk

KINDS = (
    "forward-compute", "backward-compute", "backward-weight", "optimizer",
    "forward-recv", "backward-recv", "forward-send", "backward-send",
)  # fmt: skip
"""Timer names of operations; new ones go to the end, since rows hold their places."""
MAX_STEPS = 64
"""Steps of an attempt that are kept, the first ones; the raw log has all of them."""
MAX_OPERATIONS = 20_000
"""Of one rank in one step."""
_PLACES = {name: place for place, name in enumerate(KINDS)}
_LATEST_S = 1e6
_MOST = 2**31 - 1


class Operation(NamedTuple):
    """One span of one rank, in seconds since its step began."""

    name: str
    micro_batch: int
    """-1 for what is done once a step."""
    begin_s: float
    end_s: float


class Printed(NamedTuple):
    """Operations of one rank and step as a piece of output held them."""

    operations: list[Operation]
    is_begin: bool
    """Its first part is among them: what was held of that step is of an earlier try at it."""


def read_operation(entry: Any) -> Operation | None:
    """Read what an engine printed as [name, micro batch, begin, end]; None for anything else."""
    if type(entry) is not list or len(entry) != 4:
        return None
    name, micro_batch, begin, end = entry
    if type(name) is not str or name not in _PLACES or type(micro_batch) is not int or not -1 <= micro_batch <= _MOST:
        return None
    if type(begin) not in (int, float) or type(end) not in (int, float):
        return None
    if not 0 <= begin <= end <= _LATEST_S:  # not true of NaN either
        return None
    return Operation(name, micro_batch, float(begin), float(end))


def append(attempt_id: int, found: Mapping[tuple[int, int], Printed]) -> None:
    """Add operations, {(step, rank): what was printed}, to what an attempt has; works in the caller's transaction.

    A step that is printed again from its first part on replaces what was there, as after a restart.
    """
    if not found:
        return
    rows = OperationChunk.objects.filter(attempt_id=attempt_id)
    kept = dict.fromkeys(rows.values_list("step", flat=True).order_by("step").distinct())
    for step, _ in found:
        if len(kept) < MAX_STEPS:
            kept[step] = None
    found = {key: printed for key, printed in found.items() if key[0] in kept}
    continued = {step for (step, _), printed in found.items() if not printed.is_begin}
    held = {(row.step, row.rank): row for row in rows.filter(step__in=continued)} if continued else {}
    OperationChunk.objects.bulk_create(
        [
            _chunk(attempt_id, *key, None if printed.is_begin else held.get(key), printed.operations)
            for key, printed in found.items()
        ],
        update_conflicts=True,
        unique_fields=["attempt", "step", "rank"],
        update_fields=["count", "kinds", "micro_batches", "begins", "ends"],
    )


def _chunk(
    attempt_id: int, step: int, rank: int, held: OperationChunk | None, new: Sequence[Operation]
) -> OperationChunk:
    every = [*(_unpacked(held) if held else []), *new][:MAX_OPERATIONS]

    def column(values: list[int]) -> bytes:
        return pack(np.array(values, np.int64))

    return OperationChunk(
        attempt_id=attempt_id,
        step=step,
        rank=rank,
        count=len(every),
        kinds=column([_PLACES[one.name] for one in every]),
        micro_batches=column([one.micro_batch for one in every]),
        begins=column([round(1e6 * one.begin_s) for one in every]),
        ends=column([round(1e6 * one.end_s) for one in every]),
    )


def _unpacked(row: OperationChunk) -> list[Operation]:
    columns = (unpack(column).tolist() for column in (row.kinds, row.micro_batches, row.begins, row.ends))
    return [
        Operation(KINDS[kind], micro_batch, begin / 1e6, end / 1e6)
        for kind, micro_batch, begin, end in zip(*columns, strict=True)
    ]


def steps(attempt_id: int) -> list[int]:
    """List the steps of an attempt whose operations are known."""
    return list(
        OperationChunk.objects.filter(attempt_id=attempt_id).values_list("step", flat=True).order_by("step").distinct()
    )


def read(attempt_id: int, step: int) -> dict[int, list[Operation]]:
    """Read what each rank did in a step, {rank: operations by their begin}."""
    rows = OperationChunk.objects.filter(attempt_id=attempt_id, step=step).order_by("rank")
    return {row.rank: sorted(_unpacked(row), key=lambda one: one.begin_s) for row in rows}


def delete(attempt_id: int) -> None:
    """Forget all operations of an attempt, to build them again from its log."""
    OperationChunk.objects.filter(attempt_id=attempt_id).delete()
