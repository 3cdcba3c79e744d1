"""Operations of each rank of a pipeline over time, one row per step and rank.

Engines print the first ten steps and then every hundredth. Only one writer per attempt is allowed: `ingest.services`
locks the row of the attempt.
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
"""Timer names of operations. Append new names at the end, because rows store indices."""
MAX_STEPS = 64
"""Number of first steps of an attempt that are stored; the raw log contains all of them."""
MAX_OPERATIONS = 20_000
"""Maximum for one rank in one step."""
_PLACES = {name: place for place, name in enumerate(KINDS)}
_LATEST_S = 1e6
_MOST = 2**31 - 1


class Operation(NamedTuple):
    """One operation of one rank, in seconds since the start of its step."""

    name: str
    micro_batch: int
    """-1 for operations that run once per step."""
    begin_s: float
    end_s: float


class Printed(NamedTuple):
    """Operations of one rank and step in a piece of output."""

    operations: list[Operation]
    is_begin: bool
    """The first part of the step is included, so stored operations are from before a restart and are replaced."""


def read_operation(entry: Any) -> Operation | None:
    """Parse an operation printed as [name, micro batch, begin, end]; None for anything else."""
    if type(entry) is not list or len(entry) != 4:
        return None
    name, micro_batch, begin, end = entry
    if type(name) is not str or name not in _PLACES or type(micro_batch) is not int or not -1 <= micro_batch <= _MOST:
        return None
    if type(begin) not in (int, float) or type(end) not in (int, float):
        return None
    if not 0 <= begin <= end <= _LATEST_S:  # also false for NaN
        return None
    return Operation(name, micro_batch, float(begin), float(end))


def append(attempt_id: int, printed_steps: Mapping[tuple[int, int], Printed]) -> None:
    """Add operations, {(step, rank): printed operations}, to an attempt, in the caller's transaction.

    A step that is printed again from its first part, as after a restart, replaces the stored one.
    """
    if not printed_steps:
        return
    rows = OperationChunk.objects.filter(attempt_id=attempt_id)
    stored_steps = dict.fromkeys(rows.values_list("step", flat=True).order_by("step").distinct())
    for step, _ in printed_steps:
        if len(stored_steps) < MAX_STEPS:
            stored_steps[step] = None
    printed_steps = {key: printed for key, printed in printed_steps.items() if key[0] in stored_steps}
    continued = {step for (step, _), printed in printed_steps.items() if not printed.is_begin}
    existing = {(row.step, row.rank): row for row in rows.filter(step__in=continued)} if continued else {}
    OperationChunk.objects.bulk_create(
        [
            _chunk(attempt_id, *key, None if printed.is_begin else existing.get(key), printed.operations)
            for key, printed in printed_steps.items()
        ],
        update_conflicts=True,
        unique_fields=["attempt", "step", "rank"],
        update_fields=["count", "kinds", "micro_batches", "begins", "ends"],
    )


class Collected:
    """The operations of a log, read from its beginning, as `append` stores them."""

    def __init__(self, attempt_id: int) -> None:
        self._attempt_id = attempt_id
        self._steps: set[int] = set()
        self._rows: dict[tuple[int, int], OperationChunk] = {}

    def add(self, printed_steps: Mapping[tuple[int, int], Printed]) -> None:
        """Add the operations of the next piece."""
        for (step, rank), printed in printed_steps.items():
            if len(self._steps) < MAX_STEPS:
                self._steps.add(step)
            if step in self._steps:
                existing = None if printed.is_begin else self._rows.get((step, rank))
                self._rows[step, rank] = _chunk(self._attempt_id, step, rank, existing, printed.operations)

    def store(self) -> None:
        """Replace the operations of the attempt, in the caller's transaction."""
        OperationChunk.objects.filter(attempt_id=self._attempt_id).delete()
        OperationChunk.objects.bulk_create(self._rows.values())


def _chunk(
    attempt_id: int, step: int, rank: int, existing: OperationChunk | None, new: Sequence[Operation]
) -> OperationChunk:
    operations = [*(_unpacked(existing) if existing else []), *new][:MAX_OPERATIONS]

    def column(values: list[int]) -> bytes:
        return pack(np.array(values, np.int64))

    return OperationChunk(
        attempt_id=attempt_id,
        step=step,
        rank=rank,
        count=len(operations),
        kinds=column([_PLACES[operation.name] for operation in operations]),
        micro_batches=column([operation.micro_batch for operation in operations]),
        begins=column([round(1e6 * operation.begin_s) for operation in operations]),
        ends=column([round(1e6 * operation.end_s) for operation in operations]),
    )


def _unpacked(row: OperationChunk) -> list[Operation]:
    columns = (unpack(column).tolist() for column in (row.kinds, row.micro_batches, row.begins, row.ends))
    return [
        Operation(KINDS[kind], micro_batch, begin / 1e6, end / 1e6)
        for kind, micro_batch, begin, end in zip(*columns, strict=True)
    ]


def steps(attempt_id: int) -> list[int]:
    return list(
        OperationChunk.objects.filter(attempt_id=attempt_id).values_list("step", flat=True).order_by("step").distinct()
    )


def read(attempt_id: int, step: int) -> dict[int, list[Operation]]:
    """Return the operations of each rank in a step, {rank: operations ordered by begin}."""
    rows = OperationChunk.objects.filter(attempt_id=attempt_id, step=step).order_by("rank")
    return {row.rank: sorted(_unpacked(row), key=lambda operation: operation.begin_s) for row in rows}
