"""Step lines of custom trainers: `[Epoch 0, Batch 6] Data: 2.6ms | Forward: 237.0ms | Total: 1302.5ms |`.

Every cell has its own unit. Times become timers; `total` (or `step`, `iteration`) is the step time, and other cells are
values of the step. Each rank may print its own lines; batch numbers restart with each epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from parlab.formats.grammar.endings import ending
from parlab.formats.grammar.prefixes import peel
from parlab.formats.grammar.readings import amount, united
from parlab.formats.grammar.records import Field, Record, unread
from parlab.formats.grammar.repeats import Repeats, by_part
from parlab.formats.grammar.sniff import Signs
from parlab.formats.grammar.units import normal

_WORD = r"(?i:batch|step|iter(?:ation)?)"
SIGNS: Signs = (
    (re.compile(rf"(?i:\bepoch)\W{{0,3}}\d+\W{{1,4}}{_WORD}\W{{0,3}}\d+\D.{{0,80}}:\s{{0,4}}[\d.]+\s?[mun]?s\b"), 6),
)  # fmt: skip

_HEAD = re.compile(
    rf"(?i:\bepoch)[\s:=\[]{{0,3}}(?P<epoch>\d{{1,9}})(?:/\d{{1,9}})?[\s,;\]\[|]{{1,4}}{_WORD}[\s:=\[]{{0,3}}"
    r"(?P<batch>\d{1,15})(?:/(?P<total>\d{1,15}))?\s?[\]):,|]{0,3}"
)
_START = re.compile(rf"\[?{_HEAD.pattern}")
_CELLS = re.compile(r"[|,;]")
_CELL = re.compile(r"\s{0,20}([A-Za-z][\w /.()-]{0,60}?)\s?[:=]\s?(\S[^:=]{0,60})")
_STEP_TIMES = frozenset(
    {"total_s", "step_s", "step_time_s", "iteration_s", "iteration_time_s", "batch_s", "batch_time_s"}
)
_MAX_CELLS = 200
_KEPT_EPOCHS = 8


class Clock:
    """Converts epoch and batch to one increasing iteration number."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        self.largest = -1

    def iteration(self, epoch: int, batch: int) -> int:
        offset = self.offsets.get(epoch)
        if offset is None:
            # An epoch before all recorded ones belongs to another launch, which counts from its own start.
            if self.offsets and epoch < min(self.offsets):
                self.offsets.clear()
                self.largest = -1
            offset = self.offsets[epoch] = self.largest + 1
            if len(self.offsets) > _KEPT_EPOCHS:
                del self.offsets[next(iter(self.offsets))]
        iteration = offset + batch
        self.largest = max(self.largest, iteration)
        return iteration


def _batch(line: int, rank: int | None, time: str | None, text: str) -> list[Record]:
    """Return the step of a batch, with the number of the batch as its iteration, and its timers."""
    head = _HEAD.search(text[:300])
    if head is None:
        return []
    values: dict[str, float] = {"epoch": float(head["epoch"])}
    timers: dict[str, float] = {}
    fields: list[Field] = []
    raw: list[str] = []
    bad: list[Record] = []
    for part in _CELLS.split(text[head.end() : head.end() + 8000])[:_MAX_CELLS]:
        match = _CELL.fullmatch(part.rstrip())
        if match is None:
            continue
        quantity = amount(match[2])
        if quantity is None:
            bad.append(unread(line, "not a finite number with a unit", part))
            continue
        field = united(match[1].strip(), quantity[1])
        value = normal(quantity[0], field.scale)
        if field.name in _STEP_TIMES:
            values["step_time_s"] = value
            field = field._replace(name="step_time_s")
        else:
            values.update({} if field.name.endswith("_s") else {field.name: value})
        if field.name.endswith("_s"):
            timers[match[1].strip()] = value
        fields.append(field)
        raw.append(match[2].strip())
    if not fields:
        return bad
    iteration = int(head["batch"])
    step = Record("step", line, values, iteration=iteration, rank=rank, time=time, fields=tuple(fields), raw=tuple(raw))
    return [step, *([Record("timers", line, timers, iteration=iteration, rank=rank)] if timers else []), *bad]


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Read step lines whose cells have units; yield steps, timers in seconds and the end."""
    clock, repeats = Clock(), Repeats(by_part(_START, _batch))
    for line, rank, time, text in peel(lines):
        records = repeats.read(line, rank, time, text) if "poch" in text or "POCH" in text else []
        if records:
            iteration = None
            for record in records:
                if record.kind == "step":
                    iteration = clock.iteration(int(record.values["epoch"]), record.iteration or 0)
                record.iteration = iteration if record.iteration is not None else None
                yield record
            continue
        end = ending(text)
        if end:
            yield Record("end", line, data=end, rank=rank, time=time)
